"""Layout of a request: the one owner of its order, and its payload by provider.

`lay_out` serves every request: assembled, replayed from a manifest, or passed through by the gateway. Stable content
comes first: the next request repeats it byte for byte, so that prompt caches can reuse it.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from quire.model import ToolDefinition
from quire.model.base import lazy_property
from quire.model.policy import Slot, WireFormatName
from quire.view.batches import MessageBatch, deduplicate_call_ids, flatten_batches, sum_tokens
from quire.view.counted_input import CountedInput
from quire.view.rendered import MessageCounter, RenderedMessage
from quire.view.selection import ViewSelection
from quire.wire import BlobLoader, WireFormat, wire_format_for

RENDERER_VERSION = 3
"""Must change whenever the same decisions would render to different bytes."""

MessageSection = Literal["memory", "references", "pinned", "summary", "history", "recall", "newest"]
RequestSection = Literal["system", "tools"] | MessageSection

STABLE_SECTIONS: tuple[MessageSection, ...] = ("memory", "references", "pinned", "summary", "history")
"""Sections whose messages the next request repeats."""
VOLATILE_SECTIONS: tuple[MessageSection, ...] = ("recall", "newest")
"""Sections chosen for one request: recalled content just before the question, and the newest turn."""
SECTIONS: tuple[RequestSection, ...] = ("system", "tools", *STABLE_SECTIONS, *VOLATILE_SECTIONS)
"""Order of a request, and of the decisions in its manifest. Pinned messages and history share the slot `messages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContents:
    """Content of a request by section, without an order: `lay_out` decides it."""

    system: str | None
    tools: tuple[ToolDefinition, ...]
    head_tokens: int = 0
    """Tokens of the system text and the tools."""
    batches: Mapping[MessageSection, Sequence[MessageBatch]]
    """Messages of each section. An empty section may be absent."""

    def list_batches(self, sections: Sequence[MessageSection]) -> list[MessageBatch]:
        return [batch for section in sections for batch in self.batches.get(section, ())]


class DigestStart(NamedTuple):
    """The digest of the start of a request. The digest of every request with the same start continues it."""

    head: bytes
    """The encoded model, system text and tools."""
    message_count: int
    state: Any
    """The hash object, whose type `hashlib` does not name."""


@dataclass(frozen=True, kw_only=True)
class RenderedRequest:
    model: str
    wire_format: WireFormat
    system: str | None
    tools: tuple[ToolDefinition, ...]
    messages: tuple[RenderedMessage, ...]
    stable_messages: int
    """Number of messages in the stable prefix, which the next request repeats."""
    tokens: int
    digest_start: DigestStart | None = None
    """Of this request, if an earlier one had the same start."""

    def to_payload(
        self,
        provider: WireFormatName | None = None,
        *,
        max_tokens: int | None = None,
        load_blob: BlobLoader | None = None,
    ) -> dict[str, Any]:
        """Request body for its own provider, or for another one, for which `load_blob` loads images and files."""
        wire_format = self.wire_format if provider in (None, self.wire_format.name) else wire_format_for(provider)
        is_own = wire_format is self.wire_format
        wire_messages = [
            wire_message
            for rendered in self.messages
            for wire_message in (
                rendered.wire_messages if is_own else wire_format.render_message(rendered.message, load_blob=load_blob)
            )
        ]
        tools = [wire_format.render_tool(tool) for tool in self.tools]
        return wire_format.build_payload(
            model=self.model, system=self.system, tools=tools, messages=wire_messages, max_tokens=max_tokens
        )

    @lazy_property
    def digest(self) -> str:
        """SHA-256 over the model, the system text, the tools and every message, as they are sent."""
        return self.start_digest(len(self.messages), self.digest_start).state.hexdigest()

    def start_digest(self, message_count: int, earlier: DigestStart | None = None) -> DigestStart:
        """Digests the first messages. Continues an earlier digest of the same messages, if the head is the same."""
        tools = [tool.canonical_json() for tool in self.tools]
        fields = [self.model, self.wire_format.name, self.system, tools]
        head = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        start = earlier if earlier is not None and earlier.head == head else DigestStart(head, 0, sha256(head))
        state = start.state.copy()
        state.update(b"".join([each.encoded for each in self.messages[start.message_count : message_count]]))
        return DigestStart(head, message_count, state)


def lay_out(
    contents: RequestContents, message_counter: MessageCounter, *, model: str, tokens: int | None = None
) -> RenderedRequest:
    """Puts the sections in order and makes call ids unique over all of them.

    `tokens` of the whole request are added up from the contents, unless a manifest or a client's list gives them.
    """
    stable_batches = contents.list_batches(STABLE_SECTIONS)
    volatile_batches = contents.list_batches(VOLATILE_SECTIONS)
    batches = deduplicate_call_ids([*stable_batches, *volatile_batches], message_counter)
    stable = flatten_batches(batches[: len(stable_batches)])
    messages = (*stable, *flatten_batches(batches[len(stable_batches) :]))
    if tokens is None:
        overhead = message_counter.wire_format.request_overhead + contents.head_tokens
        tokens = overhead + sum_tokens(batches)
    return RenderedRequest(
        model=model,
        wire_format=message_counter.wire_format,
        system=contents.system,
        tools=contents.tools,
        messages=messages,
        stable_messages=len(stable),
        tokens=tokens,
    )


def render(
    counted_input: CountedInput, selection: ViewSelection, message_counter: MessageCounter, *, model: str
) -> RenderedRequest:
    """Lays out the selected content."""
    head_tokens = sum(counted.tokens for counted in counted_input.tools)
    blocks: defaultdict[Slot, list[MessageBatch]] = defaultdict(list)
    for counted in selection.blocks:
        if counted.message is None:
            head_tokens += counted.tokens
        else:
            blocks[counted.block.slot].append(MessageBatch.from_messages(counted.message))
    if selection.recalled is not None:
        blocks["recall"].append(MessageBatch.from_messages(selection.recalled.message))
    summary = counted_input.summary
    contents = RequestContents(
        system=counted_input.system,
        tools=tuple(counted.definition for counted in counted_input.tools),
        head_tokens=head_tokens,
        batches={
            "memory": blocks["memory"],
            "references": blocks["references"],
            "pinned": selection.pinned,
            "summary": [MessageBatch.from_messages(summary)] if summary is not None else [],
            "history": selection.history,
            "recall": blocks["recall"],
            "newest": selection.newest,
        },
    )
    return lay_out(contents, message_counter, model=model)
