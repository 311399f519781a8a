"""Summaries of single messages that are too large to stay whole: stored with the truncation, so that they replay.

The view shows the beginning and the end of such a message, and the summary between them. Without a model, or if the
model fails, the middle is omitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quire.compaction.summarizer import Summarizer
from quire.errors import SummaryFailed
from quire.model import Entry, Truncation, Usage
from quire.view.excerpts import measure_longest_text
from quire.view.tokens import TokenCounter

if TYPE_CHECKING:
    from quire.compaction.model_summary import ModelSummary

MAX_MESSAGE_SUMMARIES = 4
"""Messages that one compaction summarizes; the others are excerpted."""
MIN_SUMMARIZED_CHARS = 400
"""Limit in characters below which a message is excerpted: there is no room for a summary."""
SUMMARY_CHARS_SHARE = 0.5
"""Share of a truncated message that its summary may use."""
CHARS_PER_TOKEN = 4
"""Estimate of the characters in one token of a summary."""

_MESSAGE_PROMPT = """\
You summarize one long message of a conversation. The model that continues it sees your summary between the beginning \
and the end of the message. Say what the message contains and what it asks for, in the order of the message: names, \
numbers, dates, paths, commands and errors verbatim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSummaries:
    """Truncations with their summaries, and what these cost."""

    truncations: tuple[Truncation, ...]
    written: "tuple[ModelSummary, ...]" = ()

    @property
    def usages(self) -> list[tuple[Usage, str]]:
        return [(each.usage, each.model) for each in self.written if each.usage is not None]


async def summarize_messages(
    truncations: Sequence[Truncation],
    entries: Sequence[Entry],
    *,
    summarizer: Summarizer,
    counter: TokenCounter,
    on_failure: Callable[[SummaryFailed], None],
) -> MessageSummaries:
    """Adds a summary to each truncation of a message of the user or the assistant. `entries` are their messages.

    Tool results are excerpted: a tool can be called again, and the model can read them by number.
    """
    by_seq = {entry.seq: entry for entry in entries}
    finished: list[Truncation] = []
    written: list[ModelSummary] = []
    for truncation in truncations:
        entry = by_seq.get(truncation.message)
        is_full = len(written) >= MAX_MESSAGE_SUMMARIES
        if entry is None or is_full or truncation.summary is not None or not _can_summarize(entry, truncation):
            finished.append(truncation)
            continue
        try:
            summary = await _summarize_message(entry, truncation, summarizer, counter)
        except SummaryFailed as failure:
            on_failure(failure)
            finished.append(truncation)
            continue
        written.append(summary)
        fits = len(summary.text) <= truncation.max_chars * SUMMARY_CHARS_SHARE * 1.5
        finished.append(truncation.model_copy(update={"summary": summary.text}) if fits else truncation)
    return MessageSummaries(truncations=tuple(finished), written=tuple(written))


def carry_summaries(truncations: Sequence[Truncation], earlier: Sequence[Truncation] | None) -> tuple[Truncation, ...]:
    """Adds the summaries that the active compaction has for the same messages at the same length."""
    known = {(each.message, each.max_chars): each for each in earlier or ()}
    return tuple(known.get((each.message, each.max_chars), each) for each in truncations)


def _can_summarize(entry: Entry, truncation: Truncation) -> bool:
    if entry.kind != "message" or entry.role not in ("user", "assistant"):
        return False
    return MIN_SUMMARIZED_CHARS <= truncation.max_chars < measure_longest_text(entry.message)


async def _summarize_message(
    entry: Entry, truncation: Truncation, summarizer: Summarizer, counter: TokenCounter
) -> "ModelSummary":
    # Most commands summarize nothing, and the import takes long.
    from quire.compaction.model_summary import summarize

    return await summarize(
        replace(summarizer, prompt=_MESSAGE_PROMPT),
        [entry],
        previous=None,
        instructions=None,
        target_tokens=int(truncation.max_chars * SUMMARY_CHARS_SHARE) // CHARS_PER_TOKEN,
        counter=counter,
    )
