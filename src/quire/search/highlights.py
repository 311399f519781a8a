"""Excerpts of found messages, with the query's terms highlighted.

A word is highlighted if the tokenizer gives it a term of the query, so that what is highlighted is what matched. One
pass over the words of the text; positions are in characters (code points).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from quire.search.languages import Language, detect_language
from quire.search.tokenizer import UNSPACED_CHAR, WORD_PATTERN, tokenize_word

EXCERPT_CHARS = 300
"""Maximum characters of an excerpt, without the ellipses at its ends."""
MAX_HIGHLIGHTED_CHARS = 60_000
"""Characters of a text in which terms are located, from its start."""

_LEAD_SHARE = 3
"""The part of the free space before the matches: a third."""
_MAX_TRIM_CHARS = 40
"""Maximum characters by which an end of the excerpt moves so as not to cut a word."""
_ELLIPSIS = "…"
_SPACE = re.compile(r"\s+")

CharSpan = tuple[int, int]


class Excerpt(NamedTuple):
    """One line of a text, and the spans (start, end) of the query's terms in it, in order and without overlap."""

    text: str
    highlights: tuple[CharSpan, ...] = ()


class _Match(NamedTuple):
    start: int
    end: int
    term: str


def make_excerpt(text: str, terms: Collection[str], *, max_chars: int = EXCERPT_CHARS) -> Excerpt:
    """The excerpt with the most distinct terms, then the most occurrences, then the earliest; else the beginning."""
    line = _SPACE.sub(" ", text[:MAX_HIGHLIGHTED_CHARS]).strip()
    matches = list(_find_matches(line, frozenset(terms), detect_language(text)))
    start, end = _place_window(line, _find_densest(matches, max_chars), max_chars)
    prefix = _ELLIPSIS if start > 0 else ""
    suffix = _ELLIPSIS if end < len(line) or len(text) > MAX_HIGHLIGHTED_CHARS else ""
    shift = len(prefix) - start
    visible = [
        (max(each.start, start) + shift, min(each.end, end) + shift)
        for each in matches
        if each.start < end and each.end > start
    ]
    return Excerpt(f"{prefix}{line[start:end]}{suffix}", _merge_spans(visible))


def _find_matches(line: str, terms: frozenset[str], language: Language) -> Iterator[_Match]:
    if not terms:
        return
    for word in WORD_PATTERN.finditer(line):
        matching = terms.intersection(tokenize_word(word[0], language))
        if matching and UNSPACED_CHAR.match(word[0]):
            yield from _find_in_run(word[0], word.start(), matching)
        elif matching:
            yield _Match(word.start(), word.end(), min(matching))


def _find_in_run(run: str, start: int, terms: frozenset[str]) -> Iterator[_Match]:
    """Matches within a run of a script without spaces, whose terms are characters and pairs of them."""
    normalized, offsets = _normalize_run(run)
    for index in range(len(normalized)):
        for end in (index + 1, index + 2):
            if (term := normalized[index:end]) in terms and end <= len(normalized):
                yield _Match(start + offsets[index], start + offsets[end], term)


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
    return _trim_start(line, start, first), _trim_end(line, end, min(last, end))


def _trim_start(line: str, start: int, first: int) -> int:
    """Moves the start after the word that it cuts, but not past the first match."""
    if start == 0 or line[start - 1] == " ":
        return start
    space = line.find(" ", start, min(first, start + _MAX_TRIM_CHARS))
    if space >= 0:
        return space + 1
    return _skip_combining(line, start, first)


def _trim_end(line: str, end: int, last: int) -> int:
    """Moves the end before the word that it cuts, but not into the last match."""
    if end == len(line) or line[end] == " ":
        return end
    space = line.rfind(" ", max(last, end - _MAX_TRIM_CHARS), end)
    if space >= 0:
        return space
    while end > last and unicodedata.combining(line[end]):
        end -= 1
    return end


def _skip_combining(line: str, start: int, first: int) -> int:
    while start < first and unicodedata.combining(line[start]):
        start += 1
    return start


def _merge_spans(spans: Sequence[CharSpan]) -> tuple[CharSpan, ...]:
    """Joins overlapping and adjacent spans, as consecutive bigrams have."""
    merged: list[CharSpan] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)
