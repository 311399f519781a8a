"""Pages: the request in its order, stable part first, and the two bodies that can be made of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from quire.model import ToolDefinition
from quire.model.policy import Provider
from quire.view.batches import Batch, distinct, leaves_of
from quire.view.gather import Gathered
from quire.view.leaves import Leaf, Meter
from quire.view.select import Selection
from quire.view.shapes import Shape, shape_for


@dataclass(frozen=True, kw_only=True)
class Pages:
    model: str
    shape: Shape
    system: str | None
    tools: tuple[ToolDefinition, ...]
    leaves: tuple[Leaf, ...]
    stable: int
    """How many leaves belong to the part that the next request repeats."""
    tokens: int

    def payload(self, provider: Provider | None = None, *, max_tokens: int | None = None) -> dict[str, Any]:
        """The request's body for its own provider, or for another."""
        shape = self.shape if provider in (None, self.shape.name) else shape_for(provider)
        own = shape is self.shape
        units = [unit for leaf in self.leaves for unit in (leaf.units if own else shape.units(leaf.message))]
        tools = [shape.tool(tool) for tool in self.tools]
        return shape.payload(model=self.model, system=self.system, tools=tools, units=units, max_tokens=max_tokens)

    @cached_property
    def digest(self) -> str:
        """Over the model, the system text, the tools and every message, as they are sent."""
        whole = sha256(self._head())
        for leaf in self.leaves:
            whole.update(leaf.encoded)
        return whole.hexdigest()

    def stable_bytes(self) -> bytes:
        return self._head() + b"".join(leaf.encoded for leaf in self.leaves[: self.stable])

    def _head(self) -> bytes:
        tools = [tool.canonical() for tool in self.tools]
        return json.dumps([self.model, self.shape.name, self.system, tools], ensure_ascii=False).encode() + b"\n"


def render(model: str, gathered: Gathered, selection: Selection, meter: Meter) -> Pages:
    """The layout: memory, references, pinned messages, the summary, the history; recall; what is being asked."""
    data = [counted for counted in selection.blocks if counted.leaf is not None]
    stable_data = [counted.leaf for slot in ("memory", "references") for counted in data if counted.block.slot == slot]
    recalled = [counted.leaf for counted in data if counted.block.slot == "recall"]
    batches = distinct([*gathered.pinned, *selection.history, *selection.newest], meter)
    pinned, history, newest = _split(batches, len(gathered.pinned), len(selection.history))
    summary = [gathered.summary] if gathered.summary is not None else []
    stable: list[Leaf] = [leaf for leaf in stable_data if leaf is not None]
    stable += [*leaves_of(pinned), *summary, *leaves_of(history)]
    shown = [selection.recalled.leaf] if selection.recalled is not None else []
    leaves = (*stable, *(leaf for leaf in recalled if leaf is not None), *shown, *leaves_of(newest))
    fixed = sum(counted.tokens for counted in selection.blocks if counted.leaf is None)
    tools = sum(counted.tokens for counted in gathered.tools)
    return Pages(
        model=model,
        shape=meter.shape,
        system=gathered.system,
        tools=tuple(counted.tool for counted in gathered.tools),
        leaves=leaves,
        stable=len(stable),
        tokens=gathered.overhead + fixed + tools + sum(leaf.tokens for leaf in leaves),
    )


def _split(batches: Sequence[Batch], *sizes: int) -> list[Sequence[Batch]]:
    pieces: list[Sequence[Batch]] = []
    start = 0
    for size in sizes:
        pieces.append(batches[start : start + size])
        start += size
    return [*pieces, batches[start:]]
