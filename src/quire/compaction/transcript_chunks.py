"""Splits a transcript into chunks that each fit into one call of the summarizer.

The chunks contain every message, in order. A message that is larger than a chunk is split into a few parts, or
excerpted if that is not enough; `omitted_chars` counts what is missing.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.compaction.summary_prompt import TranscriptMessage, render_transcript, to_transcript_message, truncate_text
from quire.errors import SummaryFailed
from quire.model import Entry
from quire.view.excerpts import find_largest_limit
from quire.view.tokens import TokenCounter

MAX_PARTS_PER_MESSAGE = 4
"""A message that would need more calls than this is excerpted, if it is one of many."""

SUMMARY_PART_CHARS = 1_000
"""Characters of one part of a summary that is folded in parts."""

_MAX_CHARS_PER_TOKEN = 12
"""Upper bound for the length of an excerpt."""
_PART_LENGTH_SHARES = (0.9, 0.7, 0.5)
"""Part lengths to try, relative to the mean length: the tokens of a text are spread unevenly."""


class TranscriptChunk(NamedTuple):
    messages: tuple[TranscriptMessage, ...]
    tokens: int

    @property
    def excerpted_seqs(self) -> tuple[int, ...]:
        """Numbers of the messages that are not complete."""
        return tuple(each.seq for each in self.messages if each.omitted_chars)


def to_transcript(entries: Sequence[Entry]) -> list[TranscriptMessage]:
    return [to_transcript_message(entry) for entry in entries if entry.kind == "message"]


def split_summary(summary: str) -> list[TranscriptMessage]:
    """Splits a summary that is too long for a prompt into parts that are folded like messages."""
    parts = list(_split_text(summary, SUMMARY_PART_CHARS))
    labels = (f", part {number} of {len(parts)}" for number in range(1, len(parts) + 1))
    return [TranscriptMessage(0, "summary so far", *part) for part in zip(parts, labels, strict=True)]


def chunk_transcript(
    transcript: Sequence[TranscriptMessage],
    *,
    max_tokens: int,
    counter: TokenCounter,
    max_parts: int = MAX_PARTS_PER_MESSAGE,
) -> list[TranscriptChunk]:
    fitted = [part for each in transcript for part in _fit_message(each, max_tokens, counter, max_parts)]
    chunks: list[TranscriptChunk] = []
    start = 0
    while start < len(fitted):
        chunk = _take_chunk(fitted, start, max_tokens, counter)
        chunks.append(chunk)
        start += len(chunk.messages)
    return chunks


def _take_chunk(
    messages: Sequence[TranscriptMessage], start: int, max_tokens: int, counter: TokenCounter
) -> TranscriptChunk:
    """Takes as many messages from `start` on as fit: estimated by a sum, then counted as a whole."""
    label_tokens = counter.count(render_transcript(()))
    end, tokens = start, label_tokens
    while end < len(messages) and tokens <= max_tokens:
        tokens += counter.count(messages[end].prompt_text) + 1
        end += 1
    if tokens > max_tokens:
        end = max(start + 1, end - 1)
    while (measured := _count_transcript(messages[start:end], counter)) > max_tokens and end > start + 1:
        end -= 1
    return TranscriptChunk(tuple(messages[start:end]), measured)


def _count_transcript(transcript: Sequence[TranscriptMessage], counter: TokenCounter) -> int:
    return counter.count(render_transcript(transcript))


def _fit_message(
    message: TranscriptMessage, max_tokens: int, counter: TokenCounter, max_parts: int
) -> Sequence[TranscriptMessage]:
    tokens = _count_transcript([message], counter)
    if tokens <= max_tokens:
        return [message]
    overhead = _count_transcript([message._replace(text="")], counter)
    if max_tokens > overhead and tokens - overhead <= (max_tokens - overhead) * max_parts:
        for share in _PART_LENGTH_SHARES:
            length = int(len(message.text) * (max_tokens - overhead) / (tokens - overhead) * share)
            parts = _split_message(message, length)
            if len(parts) <= max_parts and all(_count_transcript([part], counter) <= max_tokens for part in parts):
                return parts
    return [_excerpt_to_fit(message, max_tokens, counter)]


def _split_message(message: TranscriptMessage, part_chars: int) -> list[TranscriptMessage]:
    texts = list(_split_text(message.text, max(part_chars, 1)))
    # Characters that were omitted before count for the first part only.
    omitted = [message.omitted_chars, *(0 for _ in texts[1:])]
    return [
        message._replace(
            text=text, part_label=f"{message.part_label}, part {number} of {len(texts)}", omitted_chars=omitted_chars
        )
        for number, (text, omitted_chars) in enumerate(zip(texts, omitted, strict=True), start=1)
    ]


def _split_text(text: str, max_chars: int) -> Iterator[str]:
    """Splits a text after a line or a word that ends in the last fifth of `max_chars`, else at `max_chars`."""
    start = 0
    while start < len(text):
        end = min(len(text), start + max_chars)
        if end < len(text):
            earliest = start + max_chars * 4 // 5
            end = next(
                (cut + 1 for separator in ("\n", " ") if (cut := text.rfind(separator, earliest, end)) > start), end
            )
        yield text[start:end]
        start = end


def _excerpt_to_fit(message: TranscriptMessage, max_tokens: int, counter: TokenCounter) -> TranscriptMessage:
    def excerpt(limit: int) -> TranscriptMessage:
        text, omitted_chars = truncate_text(message.text, limit, seq=message.seq)
        return message._replace(text=text, omitted_chars=message.omitted_chars + omitted_chars)

    max_chars = min(len(message.text), max_tokens * _MAX_CHARS_PER_TOKEN)
    limit = find_largest_limit(
        lambda limit: _count_transcript([excerpt(limit)], counter), max_chars=max(max_chars, 0), max_tokens=max_tokens
    )
    if limit is None:
        raise SummaryFailed(
            "overflow",
            f"Message #{message.seq} does not fit into a call: {max_tokens:,} tokens are too few even for an excerpt.",
        )
    return excerpt(limit)
