"""The counting stage: counts and renders every block, tool and message of the view input, sorted by slot.

The later stages group, select and order what is counted here. They render only what depends on the budget or on the
selection: excerpts of a newest turn that is too large, the block of recalled messages, and repeated call ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Literal, NamedTuple

from quire.errors import InvalidRequest
from quire.model import Compaction, Entry, Span, TokenCount, ToolDefinition
from quire.model.base import lazy_property
from quire.view.batches import (
    MessageBatch,
    find_newest_turn,
    group_batches,
    narrow_batch,
    repair_tool_calls,
    sum_tokens,
)
from quire.view.excerpts import MIN_EXCERPT_CHARS
from quire.view.inputs import ContextBlock, SelectedTool, ViewInput
from quire.view.recalled_messages import FittedCandidate, RecallCandidate
from quire.view.rendered import MessageCounter, RenderedMessage, drop_unsupported_parts
from quire.view.strategies import list_protected, spread_priorities
from quire.wire.labels import label_text

SummaryLevel = Literal["short"]
MAX_CACHED_COMPACTIONS = 256
"""Decoded compactions: every request of a branch has the same one until the next compaction."""
_CLEARED_ROLES = frozenset({"assistant", "tool"})


class CountedBlock(NamedTuple):
    block: ContextBlock
    tokens: int
    message: RenderedMessage | None
    """None for blocks of the system text."""


class CountedTool(NamedTuple):
    selected: SelectedTool
    tokens: int

    @property
    def definition(self) -> ToolDefinition:
        return self.selected.definition


@dataclass(frozen=True, kw_only=True)
class CountedInput:
    request_overhead: int
    system: str | None
    """System text: the joined texts of its blocks."""
    blocks: tuple[CountedBlock, ...]
    tools: tuple[CountedTool, ...]
    summary: RenderedMessage | None
    summary_level: SummaryLevel | None
    """`short` if the summary is in its short form."""
    compaction: Entry | None
    covers: Span | None
    """Messages that the active compaction covers."""
    truncations: dict[int, int]
    """Maximum characters of each message that the active compaction truncates, by sequence number."""
    reductions: dict[int, int]
    """The same for the loaded messages, with 0 for each that the active compaction clears."""
    message_summaries: dict[int, str]
    """Summaries of truncated messages, by sequence number."""
    cleared_through: int | None
    """Tool results up to this number are cleared by the active compaction."""
    question: int | None
    """Number of the covered question that stays in the view."""
    pins: frozenset[int]
    priorities: Mapping[int, int]
    """Priorities of the loaded messages by number. All messages of a batch have the same."""
    pinned: tuple[MessageBatch, ...]
    """Covered messages that stay in the view: those that are pinned or that the active compaction preserves."""
    pinned_stubs: frozenset[int]
    """Numbers of results of pinned calls that are not pinned themselves: they are stubs."""
    pinned_results: dict[int, int]
    """Number of included results by the number of their call: a pinned result brings its call, but no other result."""
    not_loaded: Span | None
    history: tuple[MessageBatch, ...]
    newest: tuple[MessageBatch, ...]
    orphan_results: tuple[RenderedMessage, ...]
    recall_candidates: tuple[RecallCandidate, ...]
    fixed_recall: tuple[FittedCandidate, ...] | None
    continues_turn: bool

    @lazy_property
    def required_tokens(self) -> int:
        """Tokens that every request needs: all except optional blocks, the history and the newest turn."""
        blocks = sum(counted.tokens for counted in self.blocks if counted.block.is_required)
        tools = sum(counted.tokens for counted in self.tools)
        summary = self.summary.tokens if self.summary else 0
        return self.request_overhead + blocks + tools + summary + sum_tokens(self.pinned)

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the summary: system text, tools, memory and references."""
        summary = self.summary.tokens if self.summary else 0
        return self.required_tokens - summary - sum_tokens(self.pinned)

    @lazy_property
    def preserved(self) -> tuple[MessageBatch, ...]:
        """Batches that the active compaction preserves because of their priority."""
        return tuple(batch for batch in self.pinned if self.pins.isdisjoint(batch.seqs))

    @lazy_property
    def protected(self) -> frozenset[int]:
        """Numbers of messages whose tool results are not cleared."""
        return list_protected(self.pins, self.priorities)

    @property
    def batches(self) -> tuple[MessageBatch, ...]:
        """All loaded messages that a compaction can archive or must preserve."""
        return (*self.history, *self.newest)

    @lazy_property
    def history_tokens(self) -> int:
        return sum_tokens(self.history)

    @lazy_property
    def newest_tokens(self) -> int:
        return sum_tokens(self.newest)

    @property
    def first_seq(self) -> int:
        """First message of the next compaction, which includes what the active compaction covers."""
        if self.covers is not None:
            return self.covers.first
        if self.not_loaded is not None:
            return self.not_loaded.first
        return min((seq for batch in self.history for seq in batch.seqs), default=1)

    def find_largest(self, count: int = 5) -> list[tuple[str, int]]:
        """Names and tokens of the largest items."""
        sizes = [(f"{counted.block.kind} {counted.block.name!r}", counted.tokens) for counted in self.blocks]
        sizes += [(f"tool {counted.definition.name!r}", counted.tokens) for counted in self.tools]
        if self.summary is not None:
            sizes.append(("the summary", self.summary.tokens))
        for batch in self.pinned:
            held = sorted(self.pins.intersection(batch.seqs)) or batch.seqs
            sizes.append((f"pinned message #{held[0]}", batch.tokens))
        for batch in self.batches:
            name = f"message #{batch.seqs[0]}" if batch.seqs else "the newest message"
            sizes.append((name, batch.tokens))
        return sorted(sizes, key=lambda item: -item[1])[:count]


def count_input(
    view_input: ViewInput, message_counter: MessageCounter, *, max_summary_tokens: int | None = None
) -> CountedInput:
    """Counts the input. A summary that exceeds `max_summary_tokens` is replaced by its short form, if it has one."""
    body = _compaction_body(view_input.compaction) if view_input.compaction is not None else None
    priorities = {
        **spread_priorities(view_input.pinned, view_input.priorities),
        **spread_priorities(view_input.history, view_input.priorities),
    }
    body_truncations = (body.truncations or ()) if body is not None else ()
    truncations = {each.message: each.max_chars for each in body_truncations}
    summaries = {each.message: each.summary for each in body_truncations if each.summary is not None}
    reductions = dict(truncations)
    if body is not None and body.cleared_through is not None:
        through, protected = body.cleared_through, list_protected(view_input.pins, priorities)
        for entry in takewhile(lambda each: each.seq <= through, view_input.history):
            if entry.role in _CLEARED_ROLES and entry.seq not in protected:
                reductions[entry.seq] = 0
    for entry in view_input.history if view_input.drops else ():
        if entry.seq in view_input.drops:
            reductions[entry.seq] = 0 if entry.role == "tool" else MIN_EXCERPT_CHARS
    messages = message_counter.render_reduced(view_input.history, reductions, summaries)
    messages += [message_counter.render_message(drop_unsupported_parts(message)) for message in view_input.pending]
    repaired = repair_tool_calls(messages, message_counter)
    preserved = (body.preserved or ()) if body is not None else ()
    pinned, pinned_stubs, pinned_results = _count_pinned(view_input, preserved, message_counter)
    batches = group_batches(repaired.messages)
    newest_start = find_newest_turn(batches)
    # A system message at the end, such as the reminder of an agent, answers nothing.
    roles = (each.role for each in reversed(repaired.messages) if each.role != "system")
    if next(roles, "assistant") == "assistant":
        raise InvalidRequest("There is nothing to answer: the newest message must be a user message or a tool result.")
    summary, summary_level = _render_summary(view_input.compaction, body, message_counter, max_summary_tokens)
    system = join_system_texts([block.text for block in view_input.blocks if block.slot == "system"])
    return CountedInput(
        request_overhead=message_counter.wire_format.request_overhead,
        system=system,
        blocks=tuple(_count_blocks(view_input.blocks, system, message_counter)),
        tools=_count_tools(view_input.tools, message_counter),
        summary=summary,
        summary_level=summary_level,
        compaction=view_input.compaction,
        covers=body.covers if body is not None else None,
        truncations=truncations,
        reductions=reductions,
        message_summaries=summaries,
        cleared_through=body.cleared_through if body is not None else None,
        question=view_input.question,
        pins=view_input.pins,
        priorities=priorities,
        pinned=pinned,
        pinned_stubs=pinned_stubs,
        pinned_results=pinned_results,
        not_loaded=view_input.not_loaded,
        history=batches[:newest_start],
        newest=batches[newest_start:],
        orphan_results=repaired.orphan_results,
        recall_candidates=view_input.recall_candidates,
        fixed_recall=view_input.fixed_recall,
        continues_turn=view_input.continues_turn,
    )


def _count_pinned(
    view_input: ViewInput, preserved: Sequence[int], message_counter: MessageCounter
) -> tuple[tuple[MessageBatch, ...], frozenset[int], dict[int, int]]:
    """The covered messages that stay in the view, the results among them that are stubs, and the number of included
    results by call.

    A pinned result brings its call but not the results of parallel calls. The results of a pinned call are stubs.
    """
    if not view_input.pinned:
        return (), frozenset(), {}
    held = view_input.pins.union(preserved)
    stubs: set[int] = set()
    call_seq = None
    for entry in view_input.pinned:
        if entry.role != "tool":
            call_seq = entry.seq
        elif call_seq in view_input.pins and entry.seq not in held:
            stubs.add(entry.seq)
    rendered = message_counter.render_reduced(view_input.pinned, dict.fromkeys(stubs, 0), {})
    batches: list[MessageBatch] = []
    max_results: dict[int, int] = {}
    for batch in group_batches(repair_tool_calls(rendered, message_counter).messages):
        call, *results = batch.messages
        if call.call_ids and call.seq is not None and call.seq not in held:
            included = [each for each in results if each.seq in held]
            count = sum(len(each.message.tool_results) for each in included)
            if count < len(call.call_ids):
                max_results[call.seq] = count
                batch = narrow_batch(MessageBatch.from_messages(call, *included), count, message_counter)
        batches.append(batch)
    return tuple(batches), frozenset(stubs), max_results


def join_system_texts(texts: Sequence[str]) -> str | None:
    return "\n\n".join(texts) or None


def _count_blocks(
    blocks: Sequence[ContextBlock], system: str | None, message_counter: MessageCounter
) -> list[CountedBlock]:
    """Counts the system text as it is sent, joined, and every other block as a message."""
    system_blocks = [block for block in blocks if block.slot == "system"]
    counts = [message_counter.token_counter.count(block.text) for block in system_blocks[1:]]
    # The first block carries the tokens that joining adds.
    counts.insert(0, message_counter.count_system(system) - sum(counts))
    counted = [CountedBlock(block, tokens, None) for block, tokens in zip(system_blocks, counts, strict=False)]
    for block in blocks:
        if block.slot != "system":
            rendered = message_counter.render_data(build_block_text(block.kind, block.text, name=block.name))
            counted.append(CountedBlock(block, rendered.tokens, rendered))
    return counted


def _count_tools(tools: Sequence[SelectedTool], message_counter: MessageCounter) -> tuple[CountedTool, ...]:
    """Counts each tool. The first one carries the preamble that any tool adds to a request."""
    if not tools:
        return ()
    alone = [message_counter.count_tools([tool.definition]) for tool in tools]
    preamble = 2 * alone[0] - message_counter.count_tools([tools[0].definition] * 2)
    first, *others = tools
    return (CountedTool(first, alone[0]), *map(CountedTool, others, (tokens - preamble for tokens in alone[1:])))


def _render_summary(
    compaction: Entry | None, body: Compaction | None, message_counter: MessageCounter, max_tokens: int | None
) -> tuple[RenderedMessage | None, SummaryLevel | None]:
    if body is None or compaction is None or body.covers is None:
        return None, None
    count_is_valid = compaction.counter == message_counter.name and compaction.purged_at is None
    tokens = compaction.tokens if count_is_valid else None
    full = message_counter.render_data(_build_entry_summary(compaction), seq=compaction.seq, tokens=tokens)
    if body.short_summary is None or max_tokens is None or full.tokens <= max_tokens:
        return full, None
    text = build_summary_text(body, body.covers, level="short")
    return message_counter.render_data(text, seq=compaction.seq), "short"


def count_summary(body: Compaction, message_counter: MessageCounter) -> TokenCount | None:
    """Counts the summary as part of a request. Stored with the compaction, so that it is counted once."""
    if body.covers is None:
        return None
    return TokenCount(message_counter.render_data(build_summary_text(body, body.covers)).tokens, message_counter.name)


def build_block_text(kind: str, text: str, *, name: str | None) -> str:
    """Text of a block that is sent as a message."""
    return label_text(kind, text, name=name)


def build_summary_text(body: Compaction, covers: Span, *, level: SummaryLevel | None = None) -> str:
    entries = f"{covers.first}-{covers.last}"
    text = body.short_summary if level == "short" else body.summary
    if text is None:
        text = "These messages are archived; they can be read by number."
    return label_text("summary", text, entries=entries)


@lru_cache(MAX_CACHED_COMPACTIONS)
def _build_entry_summary(entry: Entry) -> str:
    """The labelled summary of a compaction that covers messages."""
    body = _compaction_body(entry)
    return build_summary_text(body, body.covers) if body.covers is not None else ""


@lru_cache(MAX_CACHED_COMPACTIONS)
def _compaction_body(entry: Entry) -> Compaction:
    body = entry.body
    if not isinstance(body, Compaction):
        raise InvalidRequest(f"Entry #{entry.seq} is not a compaction.")
    return body
