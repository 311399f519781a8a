"""Passages of a message, and its excerpts: for recall the passages that match, for a search one highlighted line.

Query terms count together only within one passage of a few sentences. A short message is ranked as a whole.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from quire.search.languages import Language, detect_language
from quire.search.tokenizer import (
    UNSPACED_CHAR,
    find_distinct_terms,
    find_matching_pieces,
    find_words,
    tokenize_query,
    tokenize_word,
)

CharSpan = tuple[int, int]

PASSAGE_WORDS = 60
"""Target words of a passage. A longer sentence stays whole, up to twice as long."""
MAX_WHOLE_PASSAGES = 2
"""Passages of a message that a search ranks only as a whole; of a longer one it ranks the passages, too."""
MAX_RANKED_PASSAGES = 255
"""Passages of one message that a search distinguishes. Of a longer message, neighbors are joined."""
MAX_EXCERPTS = 2
"""Passages of one message that its excerpt may have."""
EXCERPT_CHARS = 300
"""Maximum characters of a highlighted excerpt, without the ellipses at its ends."""
# It begins with a set of characters, which is quicker to search for than alternatives.
_SENTENCE_END = re.compile(r"[.!?\n。！？](?:(?<=[\n。！？])|\s)\s*")
_MAX_SENTENCE_CHARS = 6 * 2 * PASSAGE_WORDS
"""Characters at which text without sentences, such as code or a table, is cut."""
_LEAD_SHARE = 3
"""The part of the free space before the matches: a third."""
_MAX_TRIM_CHARS = 40
"""Maximum characters by which an end of the excerpt moves so as not to cut a word."""
_ELLIPSIS = "…"


class Excerpt(NamedTuple):
    """One line of a text, and the spans (start, end) of the query's terms in it, in order and without overlap."""

    text: str
    highlights: tuple[CharSpan, ...] = ()


class _Match(NamedTuple):
    start: int
    end: int
    term: str


def split_passages(text: str) -> list[str]:
    """Passages in order, which together hold every indexed word. At least one, which may be empty."""
    return [text[start:end] for start, end in _find_spans(text)] or [""]


def group_passages(count: int) -> list[tuple[int, int]]:
    """First and end of the passages that a search ranks together, of a message with `count`; none of a short one."""
    if count <= MAX_WHOLE_PASSAGES:
        return []
    size = -(-count // MAX_RANKED_PASSAGES)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def find_excerpts(text: str, query: str) -> tuple[CharSpan, ...]:
    """Spans (start, end) of the passages that share the most terms with the query, adjacent ones merged.

    Ties go to the earlier passage; without any matching term the excerpt is the beginning of the text.
    """
    query_terms, language = frozenset(tokenize_query(query)), detect_language(text)
    spans = [span for span in _find_spans(text) if not text[span[0] : span[1]].isspace()]
    best = sorted(
        spans, key=lambda span: (-len(query_terms & find_distinct_terms(text[span[0] : span[1]], language)), span)
    )
    return _merge_spans(sorted(best[:MAX_EXCERPTS]), max_gap=1)


def _merge_spans(spans: Iterable[CharSpan], *, max_gap: int = 0) -> tuple[CharSpan, ...]:
    """Joins overlapping and adjacent spans, as consecutive bigrams have."""
    merged: list[CharSpan] = []
    for start, end in spans:
        if merged and start - merged[-1][1] <= max_gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _find_spans(text: str) -> list[CharSpan]:
    """Position of each passage in the text."""
    if len(text) <= _MAX_SENTENCE_CHARS // 2:
        return [(0, len(text))] if text else []
    return list(_merge_sentences(text))


def _merge_sentences(text: str) -> Iterator[CharSpan]:
    """Sentences in a row that have `PASSAGE_WORDS` together."""
    passage_start, passage_end, passage_words = 0, 0, 0
    for sentence_start, sentence_end in _find_sentences(text, 0, len(text)):
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


def make_excerpt(text: str, terms: Collection[str], *, max_chars: int = EXCERPT_CHARS) -> Excerpt:
    """The excerpt with the most distinct terms, then the most occurrences, then the earliest; else the beginning.

    A word is highlighted if the tokenizer gives it a term of the query, so that what is highlighted is what matched.
    Positions are in characters (code points).
    """
    pieces = text.split()
    line = " ".join(pieces)
    matches = _find_matches(line, pieces, frozenset(terms), detect_language(text))
    start, end = _place_window(line, _find_densest(matches, max_chars), max_chars)
    prefix, suffix = _ELLIPSIS if start > 0 else "", _ELLIPSIS if end < len(line) else ""
    shift = len(prefix) - start
    visible = (
        (max(each.start, start) + shift, min(each.end, end) + shift)
        for each in matches
        if each.start < end and each.end > start
    )
    return Excerpt(f"{prefix}{line[start:end]}{suffix}", _merge_spans(visible))


def _find_matches(line: str, pieces: Iterable[str], terms: frozenset[str], language: Language) -> list[_Match]:
    """The places of words with one of the terms, in order, in a line of pieces with single spaces between them."""
    # Each distinct piece is looked up once. Only the few with a term are searched for: for words, and in the line.
    padded, found = f" {line} ", list[_Match]()
    for piece in find_matching_pieces(pieces, terms, language):
        own_matches = list(_match_words(piece, terms, language))
        start = padded.find(f" {piece} ")
        while start >= 0:
            found += [_Match(start + each.start, start + each.end, each.term) for each in own_matches]
            start = padded.find(f" {piece} ", start + len(piece) + 1)
    return sorted(found)


def _match_words(piece: str, terms: frozenset[str], language: Language) -> Iterator[_Match]:
    for word in find_words(piece):
        matching, first = terms.intersection(tokenize_word(word[0], language)), word.start()
        if not matching:
            continue
        if not UNSPACED_CHAR.match(word[0]):
            yield _Match(first, word.end(), min(matching))
            continue
        # A run of a script without spaces, whose terms are characters and pairs of them.
        normalized, offsets = _normalize_run(word[0])
        for index in range(len(normalized)):
            for end in (index + 1, index + 2):
                if (term := normalized[index:end]) in matching and end <= len(normalized):
                    yield _Match(first + offsets[index], first + offsets[end], term)


def _normalize_run(run: str) -> tuple[str, list[int]]:
    """The run as the tokenizer normalizes it, the position of each character in the run as written, and the end."""
    normalized: list[str] = []
    offsets: list[int] = []
    begin = 0
    for end in range(1, len(run) + 1):
        if end == len(run) or not unicodedata.combining(run[end]):
            composed = unicodedata.normalize("NFKC", run[begin:end])
            normalized.append(composed)
            offsets += [begin] * len(composed)
            begin = end
    return "".join(normalized), [*offsets, len(run)]


def _find_densest(matches: Sequence[_Match], max_chars: int) -> CharSpan | None:
    """Slides a window over the matches, and returns the span of those in the best one."""
    inside: Counter[str] = Counter()
    best: tuple[int, int] = (0, 0)
    span: CharSpan | None = None
    first = 0
    for last, match in enumerate(matches):
        inside[match.term] += 1
        while first < last and match.end - matches[first].start > max_chars:
            leaving = matches[first].term
            inside[leaving] -= 1
            if not inside[leaving]:
                del inside[leaving]
            first += 1
        density = (len(inside), last - first + 1)
        if density > best:
            best, span = density, (matches[first].start, match.end)
    return span


def _place_window(line: str, span: CharSpan | None, max_chars: int) -> CharSpan:
    """The excerpt around a span: whole words where they are short, never more than `max_chars`."""
    if len(line) <= max_chars:
        return 0, len(line)
    first, last = span or (0, 0)
    start = max(0, min(first - max(0, max_chars - (last - first)) // _LEAD_SHARE, len(line) - max_chars))
    end = min(len(line), start + max_chars)
    last = min(last, end)
    if start > 0 and line[start - 1] != " ":
        # The start moves after the word that it cuts, but not past the first match.
        space = line.find(" ", start, min(first, start + _MAX_TRIM_CHARS))
        start = space + 1 if space >= 0 else start
        while space < 0 and start < first and unicodedata.combining(line[start]):
            start += 1
    if end < len(line) and line[end] != " ":
        # The end moves before the word that it cuts, but not into the last match.
        space = line.rfind(" ", max(last, end - _MAX_TRIM_CHARS), end)
        end = space if space >= 0 else end
        while space < 0 and end > last and unicodedata.combining(line[end]):
            end -= 1
    return start, end
