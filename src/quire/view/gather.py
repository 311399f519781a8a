"""Gather and count: the material as blocks and batches, each with its tokens, in the slots where they would stand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from quire.errors import InvalidRequest
from quire.model import Compaction, Entry, Span, TokenCount, ToolDefinition
from quire.view.batches import Batch, bind, newest_turn
from quire.view.labels import labelled
from quire.view.leaves import Leaf, Meter, fitting
from quire.view.material import Block, Material, Tool
from quire.view.recalled import Candidate


class CountedBlock(NamedTuple):
    block: Block
    tokens: int
    leaf: Leaf | None
    """None for what stands in the system text."""


class CountedTool(NamedTuple):
    chosen: Tool
    tokens: int

    @property
    def tool(self) -> ToolDefinition:
        return self.chosen.definition


@dataclass(frozen=True, kw_only=True)
class Gathered:
    overhead: int
    system: str | None
    blocks: tuple[CountedBlock, ...]
    tools: tuple[CountedTool, ...]
    summary: Leaf | None
    compaction: Entry | None
    covers: Span | None
    """What the active compaction covers."""
    shortened: dict[int, int]
    """Which messages it shows shortened, and to how many characters."""
    pinned: tuple[Batch, ...]
    unread: Span | None
    history: tuple[Batch, ...]
    newest: tuple[Batch, ...]
    incomplete: tuple[Leaf, ...]
    recalled: tuple[Candidate, ...]

    @cached_property
    def required(self) -> int:
        """Tokens of what is there whatever happens to the history, the newest turn aside."""
        blocks = sum(counted.tokens for counted in self.blocks if counted.block.required)
        tools = sum(counted.tokens for counted in self.tools)
        summary = self.summary.tokens if self.summary else 0
        return self.overhead + blocks + tools + summary + sum(batch.tokens for batch in self.pinned)

    @property
    def fixed(self) -> int:
        """Tokens that stand before the summary: the system text, the tools, memory and references."""
        summary = self.summary.tokens if self.summary else 0
        return self.required - summary - sum(batch.tokens for batch in self.pinned)

    @cached_property
    def newest_tokens(self) -> int:
        return sum(batch.tokens for batch in self.newest)

    @property
    def first(self) -> int:
        """Where the next compaction begins: with what the last one covers, since it folds that in."""
        if self.covers is not None:
            return self.covers.first
        if self.unread is not None:
            return self.unread.first
        return min((seq for batch in self.history for seq in batch.seqs), default=1)

    def largest(self, count: int = 5) -> list[tuple[str, int]]:
        """The items that take most room, by name."""
        named = [(f"{counted.block.what} {counted.block.name!r}", counted.tokens) for counted in self.blocks]
        named += [(f"tool {counted.tool.name!r}", counted.tokens) for counted in self.tools]
        if self.summary is not None:
            named.append(("the summary", self.summary.tokens))
        for batch in (*self.pinned, *self.history, *self.newest):
            name = f"message #{batch.seqs[0]}" if batch.seqs else "the newest message"
            named.append((name, batch.tokens))
        return sorted(named, key=lambda item: -item[1])[:count]


def gather(material: Material, meter: Meter) -> Gathered:
    pending = [meter.leaf(fitting(message)) for message in material.pending]
    body = _body(material.compaction) if material.compaction is not None else None
    limits = _limits(body)
    bound = bind([*_leaves(material.history, limits, meter), *pending], meter)
    turn = newest_turn(bound.batches)
    if not bound.batches or bound.batches[-1].leaves[-1].role in ("assistant", "system"):
        raise InvalidRequest("There is nothing to answer: the newest message must be a user's, or a tool's result.")
    system = [block for block in material.blocks if block.slot == "system"]
    text = "\n\n".join(block.text for block in system) or None
    pinned = bind(meter.leaves(material.pinned), meter)
    return Gathered(
        overhead=meter.shape.overhead,
        system=text,
        blocks=(*_system_blocks(system, text, meter), *_data_blocks(material.blocks, meter)),
        tools=_tools(material.tools, meter),
        summary=_summary(material.compaction, body, meter),
        compaction=material.compaction,
        covers=body.covers if body is not None else None,
        shortened=limits,
        pinned=pinned.batches,
        unread=material.unread,
        history=bound.batches[:turn],
        newest=bound.batches[turn:],
        incomplete=bound.incomplete,
        recalled=material.recalled,
    )


def _system_blocks(blocks: Sequence[Block], text: str | None, meter: Meter) -> list[CountedBlock]:
    """The text is counted as it is sent, in one piece; the first block carries what joining them adds."""
    counts = [meter.counter.count(block.text) for block in blocks[1:]]
    return [
        CountedBlock(block, tokens, None)
        for block, tokens in zip(blocks, [meter.system(text) - sum(counts), *counts], strict=False)
    ]


def _data_blocks(blocks: Sequence[Block], meter: Meter) -> list[CountedBlock]:
    counted: list[CountedBlock] = []
    for block in blocks:
        if block.slot != "system":
            leaf = meter.data(labelled(block.what, block.text, name=block.name))
            counted.append(CountedBlock(block, leaf.tokens, leaf))
    return counted


def _tools(tools: Sequence[Tool], meter: Meter) -> tuple[CountedTool, ...]:
    """What the first one adds to a request without tools, and each other one to a request with some."""
    if not tools:
        return ()
    alone = [meter.tools([tool.definition]) for tool in tools]
    preamble = 2 * alone[0] - meter.tools([tools[0].definition] * 2)
    first, *others = tools
    return (CountedTool(first, alone[0]), *map(CountedTool, others, (tokens - preamble for tokens in alone[1:])))


def _leaves(entries: Sequence[Entry], limits: Mapping[int, int], meter: Meter) -> list[Leaf]:
    if not limits:
        return meter.leaves(entries)
    return [meter.entry(entry, limit=limits.get(entry.seq)) for entry in entries]


def _summary(compaction: Entry | None, body: Compaction | None, meter: Meter) -> Leaf | None:
    if body is None or compaction is None or body.covers is None:
        return None
    trusted = compaction.counter == meter.name and compaction.purged_at is None
    tokens = compaction.tokens if trusted else None
    return meter.data(summary_text(body, body.covers), seq=compaction.seq, tokens=tokens)


def _limits(body: Compaction | None) -> dict[int, int]:
    return {each.message: each.limit for each in body.shortened or ()} if body is not None else {}


def summary_tokens(body: Compaction, meter: Meter) -> TokenCount | None:
    """What its summary costs in a request, to be kept beside it, so that it is counted once."""
    if body.covers is None:
        return None
    return TokenCount(meter.data(summary_text(body, body.covers)).tokens, meter.name)


def summary_text(body: Compaction, covers: Span) -> str:
    entries = f"{covers.first}-{covers.last}"
    text = body.summary if body.summary is not None else "These messages are archived; they can be read by number."
    return labelled("summary", text, entries=entries)


def _body(entry: Entry) -> Compaction:
    body = entry.body
    if not isinstance(body, Compaction):
        raise InvalidRequest(f"Entry #{entry.seq} is no compaction.")
    return body
