"""Needs: the earlier messages that a reply turned out to need, because it cites, quotes or reads them.

They are found in the stored conversation once, and are the same for every variant. Regret is the share of them that a
variant's request did not have in view.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, cast

from quire.backtest.recording import RecordedStep
from quire.compaction.citations import find_cited_entries
from quire.context.builtin_tool_schemas import ReadHistory
from quire.engine.request import Request
from quire.model import Entry, Message, TextPart, ToolResultPart
from quire.model.base import lazy_property

QUOTE_WORDS = 8
"""Words in a row that a reply must share with an earlier message to count as a quote of it: fewer are often chance."""
MAX_INDEXED_RUNS = 2_000_000
"""Runs of words of one conversation that quotes are looked up in. A run takes about 100 bytes."""
MAX_OTHER_SOURCES = 7
"""Further messages with the same words. Any of them in view serves the need."""
MAX_INDEXED_WORDS = 20_000
"""Words of one message that are searched for quotes."""
MAX_READ_MESSAGES = 50
"""Messages of one `history_read` that count as needs."""

_WORD = re.compile(r"\w+")

NeedKind = Literal["cited", "quoted", "read"]


class Need(NamedTuple):
    """What a reply needed: one of `messages` (numbers in the stored conversation), or the quoted words."""

    kind: NeedKind
    messages: tuple[int, ...]
    words: tuple[str, ...] = ()


class NeedFinder:
    """Finds the needs of the replies of one conversation, in order."""

    def __init__(self) -> None:
        # Two dictionaries, because most words are in one message only, and a list for each would double the memory.
        self._first_sources: dict[int, int] = {}
        """The first message of a user or a tool by the hash of each `QUOTE_WORDS` words in it."""
        self._other_sources: dict[int, tuple[int, ...]] = {}
        self._messages: set[int] = set()
        """Numbers of the messages so far. Other entries, such as a compaction, are never in view themselves."""

    def find(self, step: RecordedStep) -> list[Need]:
        """Needs of the step's reply among the messages before its question or its newest tool results."""
        new = [entry for entry in (*step.before, *step.pending) if entry.kind == "message"]
        newest = {entry.seq for entry in new if entry.role in ("user", "tool")}
        self._messages.update(entry.seq for entry in new)
        message, last = step.reply.message, step.reply.seq - 1
        cited = (find_cited_entries(message.text, last_entry=last) & self._messages) - newest
        read: set[int] = set()
        for call in message.tool_calls:
            if call.name != ReadHistory.tool_name:
                continue
            with suppress(ValueError):
                range_read = ReadHistory.model_validate_json(call.arguments or "{}")
                end = min(range_read.last or range_read.first, range_read.first + MAX_READ_MESSAGES - 1, last)
                read.update(range(range_read.first, end + 1))
        read = (read & self._messages) - newest
        needs = [Need("cited", (seq,)) for seq in sorted(cited)]
        needs += [Need("read", (seq,)) for seq in sorted(read - cited)]
        for text in _list_written_texts(message):
            needs += self._find_quotes(_split_words(text))
        for entry in new:
            self._add_source(entry)
        self._messages.update(entry.seq for entry in (step.reply, *step.after) if entry.kind == "message")
        return needs

    def _find_quotes(self, words: Sequence[str]) -> Iterator[Need]:
        """The longest runs of words that one earlier message has too."""
        start = 0
        while start + QUOTE_WORDS <= len(words):
            sources = self._list_sources(_hash_words(words, start))
            end = start + 1
            while sources and end + QUOTE_WORDS <= len(words):
                common = sources.intersection(self._list_sources(_hash_words(words, end)))
                if not common:
                    break
                sources, end = common, end + 1
            if sources:
                end += QUOTE_WORDS - 1
                yield Need("quoted", tuple(sorted(sources)), tuple(words[start:end]))
            start = end

    def _list_sources(self, key: int) -> set[int]:
        first = self._first_sources.get(key)
        return set() if first is None else {first, *self._other_sources.get(key, ())}

    def _add_source(self, entry: Entry) -> None:
        if entry.role not in ("user", "tool") or entry.purged_at is not None:
            return
        parts = [part for part in entry.message.parts if isinstance(part, TextPart | ToolResultPart)]
        for part in parts:
            words = _split_words(part.text)
            for start in range(len(words) - QUOTE_WORDS + 1):
                key = _hash_words(words, start)
                if key not in self._first_sources:
                    if len(self._first_sources) < MAX_INDEXED_RUNS:
                        self._first_sources[key] = entry.seq
                elif entry.seq != self._first_sources[key]:
                    others = self._other_sources.get(key, ())
                    if len(others) < MAX_OTHER_SOURCES and entry.seq not in others:
                        self._other_sources[key] = (*others, entry.seq)


def _split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())[:MAX_INDEXED_WORDS]


def _hash_words(words: Sequence[str], start: int) -> int:
    return hash(tuple(words[start : start + QUOTE_WORDS]))


def _list_written_texts(message: Message) -> Iterator[str]:
    """Texts of a reply: what it says, and what it passes to tools, such as the old text of an edit."""
    yield message.text
    for call in message.tool_calls:
        try:
            arguments: Any = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            values = cast(dict[str, Any], arguments).values()
            yield from (value for value in values if isinstance(value, str))


class NeedsInView:
    """Looks up needs in one request."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def contains(self, need: Need, numbers: Mapping[int, int]) -> bool:
        """Whether the request has a needed message whole, or the quoted words anywhere, also in an earlier reply.

        `numbers` maps message numbers of the stored conversation to message numbers of the request's log.
        """
        if any(numbers.get(seq) in self._whole_messages for seq in need.messages):
            return True
        return bool(need.words) and f" {' '.join(need.words)} " in self._searched_text

    @lazy_property
    def _whole_messages(self) -> set[int]:
        return {
            seq
            for row in self._request.manifest.included
            if row.kind == "message" and row.span is not None and row.reason not in ("cleared", "excerpted")
            if row.excerpt_chars is None and row.excerpt_spans is None and row.turn_excerpt_chars is None
            for seq in range(row.span.first, row.span.last + 1)
        }

    @lazy_property
    def _searched_text(self) -> str:
        """The words of all that is no source of a quote, between single spaces: replies, the summary, excerpts,
        recalled passages, references."""
        whole, texts = self._whole_messages, list[str]()
        for each in self._request.assembly.rendered.messages:
            if each.message.role == "assistant":
                texts += _list_written_texts(each.message)
            elif each.seq is None or each.seq not in whole:
                texts += [each.message.text, *(result.text for result in each.message.tool_results)]
        return f" {' '.join(_WORD.findall(' | '.join(texts).lower()))} "
