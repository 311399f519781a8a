"""Splits long messages into passages of a few sentences, and finds the excerpts of a message for a query.

Query terms count together only within one passage. A short message is one passage; of a very long one only the head and
the tail are indexed.
"""

import re
from collections.abc import Iterator

from quire.context.recall.tokenizer import deduplicate, tokenize

PASSAGE_WORDS = 60
"""Target words of a passage; a longer sentence stays whole, up to twice as long."""
MAX_INDEXED_CHARS = 60_000
"""Characters of a message that are indexed: its head, and the last `_TAIL_CHARS`."""
MAX_EXCERPTS = 2
"""Passages of one message that its excerpt may have."""

_TAIL_CHARS = 20_000
_SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[。！？])")
_MAX_SENTENCE_CHARS = 6 * 2 * PASSAGE_WORDS
"""Characters at which text without sentences, such as code or a table, is cut."""


def split_passages(text: str) -> list[str]:
    """Passages in order, which together hold every indexed word; at least one, which may be empty."""
    if len(text) > MAX_INDEXED_CHARS:
        text = f"{text[: MAX_INDEXED_CHARS - _TAIL_CHARS]}\n{text[-_TAIL_CHARS:]}"
    if len(text) <= _MAX_SENTENCE_CHARS // 2:
        return [text]
    return list(_merge_sentences(text)) or [""]


def find_excerpts(text: str, query: str) -> tuple[tuple[int, int], ...]:
    """Spans (start, end) of the passages that share the most terms with the query, adjacent ones merged.

    Ties go to the earlier passage; without any matching term the excerpt is the beginning of the text.
    """
    query_terms = frozenset(deduplicate(tokenize(query)))
    spans = _find_passage_spans(text)
    best = sorted(spans, key=lambda span: (-len(query_terms & set(tokenize(text[span[0] : span[1]]))), span))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(best[:MAX_EXCERPTS]):
        if merged and start - merged[-1][1] <= 1:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return tuple(merged)


def _merge_sentences(text: str) -> Iterator[str]:
    pending: list[str] = []
    count = 0
    for sentence in _split_sentences(text):
        words = max(sentence.count(" ") + 1, len(sentence) // 12)
        if pending and count + words > PASSAGE_WORDS:
            yield " ".join(pending)
            pending, count = [], 0
        pending.append(sentence)
        count += words
    if pending:
        yield " ".join(pending)


def _split_sentences(text: str) -> Iterator[str]:
    for sentence in _SENTENCE_BREAK.split(text):
        while len(sentence) > _MAX_SENTENCE_CHARS:
            cut = sentence.rfind(" ", _MAX_SENTENCE_CHARS // 2, _MAX_SENTENCE_CHARS) + 1 or _MAX_SENTENCE_CHARS
            yield sentence[:cut]
            sentence = sentence[cut:]
        if sentence:
            yield sentence


def _find_passage_spans(text: str) -> list[tuple[int, int]]:
    """Position of each passage in the text, by its words: a passage joins its sentences with other whitespace."""
    spans: list[tuple[int, int]] = []
    at = 0
    for passage in split_passages(text):
        words: list[tuple[int, int]] = []
        for word in passage.split():
            start = text.find(word, at)
            if start < 0:
                break
            at = start + len(word)
            words.append((start, at))
        if words:
            spans.append((words[0][0], words[-1][1]))
    return spans
