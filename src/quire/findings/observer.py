"""Notices waste while the messages of a session are read: one pass, bounded memory, no database.

An observation costs what its advice would have saved, at the model's list prices. What nothing could have saved is
noticed too, as a fact that costs nothing. Thresholds are high, so that a session without waste has no observation.
"""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from quire.ledger.cache_breaks import CachedRequest, find_cache_break
from quire.model import ImagePart, Message, TextPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import get_object, is_object
from quire.sources.base import SourceMessage
from quire.view.call_prices import TOKENS_PER_PRICE, Cost
from quire.view.model_specs import ModelSpec, is_local_model, model_spec_for

ObservationKind = Literal["full_window", "pause", "fixed_prompt", "large_file", "cache_drop"]

MIN_BREAK_TOKENS = 5_000
"""Tokens processed again from which a cache break is noticed."""
RESTART_TOKENS = 30_000
"""Size of a new session's first request: the program's own prompt and what is said of the work so far."""
MIN_SAVED_USD = 0.25
"""What the advice must have saved in a session to be worth a line."""
LONG_WINDOW_TOKENS = 100_000
"""Size of the window above which each request pays for what a compaction would have removed."""
MIN_LONG_REQUESTS = 10
SUMMARY_TOKENS, READ_AGAIN_TOKENS = 4_000, 30_000
"""What a compaction writes, and what an agent reads again after it. Measured on real sessions."""
MIN_FILE_TOKENS, USED_REQUESTS, MIN_CARRIED_REQUESTS = 5_000, 20, 20
"""Size of a file that was read, requests for which it counts as in use after that or after it was named last, and
further requests that carried it, from which it is noticed."""
MAX_OPEN_FILES = 50
OWN_PROMPT_TOKENS = {"claude-code": 35_000, "codex": 15_000}
"""Instructions and tool definitions of the program itself, which its users cannot turn off: the most that real sessions
of a version begin with at least. Of other programs it is not known."""
MIN_ADDED_TOKENS = 5_000
"""Tokens of the first request beyond its messages and the program's own prompt."""
CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1_600
MAX_TEXT_CHARS = 160
MAX_OBSERVATIONS = 200
"""Observations of one session."""
HOUR_SECONDS, DEFAULT_CACHE_SECONDS = 3_600, 300
MIN_PAUSE_SECONDS = 1_800
"""A user who pauses for as long could have ended the session, or compacted it before. Shorter pauses are thinking, and
cost what they cost."""

_PATH_FIELDS = ("file_path", "path", "filePath", "absolute_path", "target_file", "filename")


class Observation(NamedTuple):
    """Something that a session wasted, and where."""

    kind: ObservationKind
    text: str
    """What it was, such as a path; quotes the session."""
    item: str
    """Id of the message in the source; in the log's rows, `branch:seq` of the entry."""
    times: int
    """Breaks or requests."""
    tokens: int
    cost_usd: float
    """What the advice would have saved; 0 for a fact."""


class _LargeFile:
    """A large file in the window, and the number of requests at which it was last in use."""

    def __init__(self, path: str, item: str, tokens: int, requests: int) -> None:
        self.path, self.item, self.tokens, self.used_at = path, item, tokens, requests
        self.name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]


class _Sum:
    """What observations of one kind add up to, and the largest of them."""

    def __init__(self) -> None:
        self.times, self.tokens, self.saved, self.item, self.largest = 0, 0, 0.0, "", 0.0

    def add(self, item: str, tokens: int, saved: float, *, size: float) -> None:
        self.times, self.tokens, self.saved = self.times + 1, self.tokens + tokens, self.saved + saved
        if size > self.largest or not self.item:
            self.item, self.largest = item, size


class SessionObserver:
    """Reads the messages of a session in order; `finish` returns what it noticed."""

    def __init__(self, client: str = "", *, has_beginning: bool = True) -> None:
        self._own_prompt = OWN_PROMPT_TOKENS.get(client) if has_beginning else None
        """None if nothing can be said of the first request."""
        self._noticed: list[Observation] = []
        self._requests_by_item: dict[str | None, CachedRequest] = {}
        """The newest request on the path to each message."""
        self._pauses, self._drops, self._long = _Sum(), _Sum(), _Sum()
        self._dropped_usd = 0.0
        self._paths: dict[str, str] = {}
        """Path of each call that has no result yet."""
        self._files: list[_LargeFile] = []
        self._visible_tokens = 0
        self._added: tuple[int, str] | None = None
        self._requests, self._ordinal, self._compactions = 0, 0, 0
        self._answers_prompt = False
        """Whether the next reply answers a message of the user, and not a tool's result."""
        self._spec = ModelSpec()

    def add(self, each: SourceMessage) -> None:
        self._ordinal += 1
        if each.compaction is not None:
            self._compactions += 1
            self._end_window()
        elif each.message.role == "assistant":
            if each.usage is not None and not each.usage.estimated and each.usage.input_tokens:
                self._add_request(each, each.usage)
            for call in each.message.tool_calls:
                self._paths[call.id] = _get_path(call)
            for file in self._files:
                if any(file.name in text for text in _list_texts(each.message)):
                    file.used_at = self._requests
        elif each.message.role == "user":
            self._answers_prompt = True
        elif each.message.role == "tool":
            self._answers_prompt = False
            for result in each.message.tool_results:
                path, tokens = self._paths.pop(result.call_id, ""), len(result.text) // CHARS_PER_TOKEN
                if path and tokens >= MIN_FILE_TOKENS and len(self._files) < MAX_OPEN_FILES:
                    self._files.append(_LargeFile(path, each.id, tokens, self._requests))
        self._visible_tokens += _estimate_tokens(each.message)
        if each.id not in self._requests_by_item and each.parent in self._requests_by_item:
            self._requests_by_item[each.id] = self._requests_by_item[each.parent]

    def _add_request(self, each: SourceMessage, usage: Usage) -> None:
        if usage.model and not is_local_model(usage.model):
            self._spec = model_spec_for(usage.model)
        self._requests += 1
        if self._added is None:
            self._added = (usage.input_tokens - self._visible_tokens - (self._own_prompt or 0), each.id)
        excess = usage.input_tokens - LONG_WINDOW_TOKENS
        if excess > 0:
            self._long.add(each.id, excess, self._price_reads(excess, 1), size=excess)
        is_hourly = bool(get_object(usage.provider_fields or {}, "cache_creation").get("ephemeral_1h_input_tokens"))
        request = CachedRequest(
            reply=self._ordinal,
            created_at=each.at or 0,
            model=usage.model or "",
            cache_seconds=HOUR_SECONDS if is_hourly else DEFAULT_CACHE_SECONDS,
            usage=usage,
            summary=self._compactions,
        )
        before = self._requests_by_item.get(each.parent)
        self._requests_by_item[each.id] = request
        # Most requests read what the one before had in the cache: nothing to look at.
        if before is None or before.usage is None or before.summary != request.summary or each.at is None:
            return
        if usage.cache_read_tokens + MIN_BREAK_TOKENS > before.usage.input_tokens:
            return
        found = find_cache_break(before, request, _compute_cost)
        if found is None or not found.tokens or found.tokens < MIN_BREAK_TOKENS:
            return
        lost = found.cost_usd or 0.0
        # A new session sends its first request at the full price, too.
        saved = lost * max(0, found.tokens - RESTART_TOKENS) / found.tokens
        if found.kind == "expired" and self._answers_prompt and found.seconds >= MIN_PAUSE_SECONDS:
            self._pauses.add(each.id, found.tokens, saved, size=saved)
        else:
            self._drops.add(each.id, found.tokens, 0.0, size=lost)
            self._dropped_usd += lost

    def _end_window(self) -> None:
        """Notes what the window held for nothing, when a compaction empties it or the session ends."""
        for file in self._files:
            carried = self._requests - file.used_at - USED_REQUESTS
            if carried >= MIN_CARRIED_REQUESTS:
                saved = self._price_reads(file.tokens, carried)
                self._notice("large_file", _cut(file.path), file.item, carried, file.tokens, saved)
        self._files = []
        # A compaction reads the window once more and writes a summary. The next requests send what is left, and look up
        # what is missing.
        made = self._price_reads(LONG_WINDOW_TOKENS, 1) + self._price_output(SUMMARY_TOKENS)
        made += self._price_input(RESTART_TOKENS + READ_AGAIN_TOKENS)
        if self._long.times >= MIN_LONG_REQUESTS:
            compactions = 1 + self._long.largest // (LONG_WINDOW_TOKENS - RESTART_TOKENS)
            saved = self._long.saved - compactions * made
            text = f"{self._long.times:,} requests above {LONG_WINDOW_TOKENS // 1_000}k tokens"
            self._notice("full_window", text, self._long.item, self._long.times, self._long.tokens, saved)
        self._long = _Sum()

    def finish(self) -> list[Observation]:
        self._end_window()
        pauses, drops = self._pauses, self._drops
        self._notice("pause", _count(pauses.times, "pause"), pauses.item, pauses.times, pauses.tokens, pauses.saved)
        if self._own_prompt is not None and self._added is not None and self._added[0] >= MIN_ADDED_TOKENS:
            tokens, item = self._added
            saved = self._price_input(tokens) + self._price_reads(tokens, self._requests - 1)
            self._notice("fixed_prompt", "", item, self._requests, tokens, saved)
        if drops.times:
            text = f"{_count(drops.times, 'drop')}, ${self._dropped_usd:,.2f}"
            self._noticed.append(Observation("cache_drop", text, drops.item, drops.times, drops.tokens, 0.0))
        return self._noticed

    def _notice(self, kind: ObservationKind, text: str, item: str, times: int, tokens: int, saved: float) -> None:
        if saved >= MIN_SAVED_USD and len(self._noticed) < MAX_OBSERVATIONS:
            self._noticed.append(Observation(kind, text, item, times, tokens, saved))

    def _price_input(self, tokens: int) -> float:
        return float(tokens * (self._spec.input_price or Decimal(0)) / TOKENS_PER_PRICE)

    def _price_output(self, tokens: int) -> float:
        return float(tokens * (self._spec.output_price or Decimal(0)) / TOKENS_PER_PRICE)

    def _price_reads(self, tokens: int, requests: int) -> float:
        price = self._spec.cache_read_price or self._spec.input_price or Decimal(0)
        return float(tokens * requests * price / TOKENS_PER_PRICE)


def _compute_cost(usage: Usage, model: str, at: datetime) -> Cost:
    return model_spec_for(model).compute_cost(usage, at=at)


def _estimate_tokens(message: Message) -> int:
    chars, images = 0, 0
    for part in message.parts:
        match part:
            case TextPart():
                chars += len(part.text)
            case ToolCallPart():
                chars += len(part.arguments)
            case ToolResultPart():
                chars += len(part.text)
                images += sum(isinstance(piece, ImagePart) for piece in part.content)
            case ImagePart():
                images += 1
            case _:
                pass
    return chars // CHARS_PER_TOKEN + images * IMAGE_TOKENS


def _list_texts(message: Message) -> Iterator[str]:
    """What a reply says and calls."""
    for part in message.parts:
        if isinstance(part, TextPart):
            yield part.text
        elif isinstance(part, ToolCallPart):
            yield part.arguments


def _get_path(call: ToolCallPart) -> str:
    """The file that a call names, or an empty text."""
    try:
        arguments: Any = from_json(call.arguments or "{}")
    except ValueError:
        return ""
    values = (arguments.get(name) for name in _PATH_FIELDS) if is_object(arguments) else ()
    return next((value for value in values if isinstance(value, str) and value), "")


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _cut(text: str) -> str:
    flat = " ".join(text[: 4 * MAX_TEXT_CHARS].split())
    return flat if len(flat) <= MAX_TEXT_CHARS else f"{flat[: MAX_TEXT_CHARS - 1]}…"
