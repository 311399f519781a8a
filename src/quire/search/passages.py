"""Splits long messages into passages of a few sentences, and finds the excerpts of a message for a query.

Query terms count together only within one passage. A short message is one passage; of a very long one only the head and
the tail are indexed.
"""

import re
from collections.abc import Iterator

from quire.search.languages import detect_language
from quire.search.tokenizer import find_distinct_terms, tokenize_query

CharSpan = tuple[int, int]

PASSAGE_WORDS = 60
"""Target words of a passage; a longer sentence stays whole, up to twice as long."""
MAX_INDEXED_CHARS = 60_000
"""Characters of a message that are indexed: its head, and the last `_TAIL_CHARS`."""
MAX_EXCERPTS = 2
"""Passages of one message that its excerpt may have."""

_TAIL_CHARS = 20_000
# It begins with a set of characters, which is quicker to search for than alternatives.
_SENTENCE_END = re.compile(r"[.!?\n。！？](?:(?<=[\n。！？])|\s)\s*")
_MAX_SENTENCE_CHARS = 6 * 2 * PASSAGE_WORDS
"""Characters at which text without sentences, such as code or a table, is cut."""


def split_passages(text: str) -> list[str]:
    """Passages in order, which together hold every indexed word; at least one, which may be empty."""
    return [text[start:end] for start, end in _find_spans(text)] or [""]


def find_excerpts(text: str, query: str) -> tuple[CharSpan, ...]:
    """Spans (start, end) of the passages that share the most terms with the query, adjacent ones merged.

    Ties go to the earlier passage; without any matching term the excerpt is the beginning of the text.
    """
    query_terms, language = frozenset(tokenize_query(query)), detect_language(text)
    spans = [span for span in _find_spans(text) if not text[span[0] : span[1]].isspace()]
    best = sorted(
        spans, key=lambda span: (-len(query_terms & find_distinct_terms(text[span[0] : span[1]], language)), span)
    )
    merged: list[CharSpan] = []
    for start, end in sorted(best[:MAX_EXCERPTS]):
        if merged and start - merged[-1][1] <= 1:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return tuple(merged)


def _find_spans(text: str) -> list[CharSpan]:
    """Position of each passage in the text."""
    if len(text) <= _MAX_SENTENCE_CHARS // 2:
        return [(0, len(text))] if text else []
    if len(text) <= MAX_INDEXED_CHARS:
        return list(_merge_sentences(text, 0, len(text)))
    return [
        *_merge_sentences(text, 0, MAX_INDEXED_CHARS - _TAIL_CHARS),
        *_merge_sentences(text, len(text) - _TAIL_CHARS, len(text)),
    ]


def _merge_sentences(text: str, start: int, end: int) -> Iterator[CharSpan]:
    """Sentences in a row that have `PASSAGE_WORDS` together."""
    passage_start, passage_end, passage_words = start, start, 0
    for sentence_start, sentence_end in _find_sentences(text, start, end):
        words = max(text.count(" ", sentence_start, sentence_end) + 1, (sentence_end - sentence_start) // 12)
        if passage_words and passage_words + words > PASSAGE_WORDS:
            yield passage_start, passage_end
            passage_words = 0
        if not passage_words:
            passage_start = sentence_start
        passage_end = sentence_end
        passage_words += words
    if passage_words:
        yield passage_start, passage_end


def _find_sentences(text: str, start: int, end: int) -> Iterator[CharSpan]:
    for match in _SENTENCE_END.finditer(text, start, end):
        # A full stop belongs to its sentence; a line break does not.
        stop = match.start() + (text[match.start()] != "\n")
        if stop - start > _MAX_SENTENCE_CHARS:
            yield from _cut_sentence(text, start, stop)
        elif stop > start:
            yield start, stop
        start = match.end()
    yield from _cut_sentence(text, start, end)


def _cut_sentence(text: str, start: int, end: int) -> Iterator[CharSpan]:
    while end - start > _MAX_SENTENCE_CHARS:
        last = start + _MAX_SENTENCE_CHARS
        cut = text.rfind(" ", start + _MAX_SENTENCE_CHARS // 2, last) + 1 or last
        yield start, cut
        start = cut
    if end > start:
        yield start, end
