"""Notices waste while the messages of a session are read: one pass, bounded memory, no database.

Prices come from the model's list: tokens that entered the context window again count as fresh input, and tokens that
later requests carried count as cache reads. Thresholds are high, so that a session without waste has no observation.
"""

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from quire.compaction.lost_facts import LostFact, find_lost_facts
from quire.importers.base import SourceCompaction, SourceMessage
from quire.ledger.cache_breaks import CachedRequest, find_cache_break
from quire.model import ImagePart, Message, TextPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import get_object, is_object
from quire.view.call_prices import TOKENS_PER_PRICE, Cost
from quire.view.model_specs import ModelSpec, is_local_model, model_spec_for

ObservationKind = Literal[
    "cache_break", "cache_share", "said_again", "unused_result", "fixed_prompt", "repeated_read", "failed_command"
]

MIN_BREAK_TOKENS = 5_000
"""Tokens processed again from which a cache break is noticed."""
MIN_SHARE_INPUT_TOKENS, MIN_SHARE_REQUESTS, MAX_CACHE_SHARE = 200_000, 5, 0.3
"""Sessions with as much input and as many requests, of which the cache served less than this share."""
MIN_RESULT_TOKENS, MIN_CARRIED_REQUESTS = 8_000, 3
"""Size of a result, and later requests with it, from which it is noticed that no reply uses it."""
MIN_FIXED_TOKENS = 30_000
"""Tokens of the first request beyond its messages: instructions and tool definitions."""
MIN_READS, MIN_FAILURES = 4, 3
MIN_REREAD_TOKENS = 1_000
CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1_600
MAX_PROMPT_CHARS = 4_000
"""A longer text of the user's is pasted, not said."""
MAX_SAID_MESSAGES = 500
MAX_MARKERS = 400
"""Words of a result by which its use is recognized, evenly from all of it."""
MAX_OPEN_RESULTS = 50
MAX_SCANNED_CHARS = 100_000
"""Characters of a result or reply whose words are compared."""
MAX_OBSERVATIONS = 200
"""Observations of one session."""
MAX_TEXT_CHARS = 160
MIN_DECISION_SHARE = 0.65
HOUR_SECONDS, DEFAULT_CACHE_SECONDS = 3_600, 300

_READ_TOOLS = frozenset({"read", "read_file", "readfile", "view", "view_file", "open_file", "read_text_file", "cat"})
_SHELL_TOOLS = frozenset(
    {"bash", "shell", "exec_command", "run_shell_command", "execute_command", "run_terminal_cmd", "local_shell"}
)
_EDIT_NAME = re.compile(r"edit|write|patch|replace|insert|create", re.IGNORECASE)
_PATH_FIELDS = ("file_path", "path", "filePath", "absolute_path", "target_file", "filename")
_COMMAND_FIELDS = ("command", "cmd", "script")
_READ_COMMAND = re.compile(r"(?:cat|head|tail|nl|bat|less|sed -n)\s")
_EXIT_CODE = re.compile(r"(?:^|\n)(?:Process exited with code|Exit code:?|exit status) (-?\d{1,5})")
_WORD = re.compile(r"\w{7,60}")

_CAUSES = {
    "model": "another model",
    "expired": "a pause longer than its lifetime",
    "evicted": "evicted early",
    "unknown": "an unknown change",
}
"""Causes of cache breaks that are known without the bodies of requests."""


class Observation(NamedTuple):
    """Something that a session wasted, and where."""

    kind: ObservationKind
    text: str
    """What it was, such as a path or a command; quotes the session."""
    item: str
    """Id of the message in the source; in the log's rows, `branch:seq` of the entry."""
    times: int
    """Reads, failures, breaks or requests."""
    tokens: int
    cost_usd: float


class _ToolCall(NamedTuple):
    call: ToolCallPart
    arguments: dict[str, Any]
    item: str


class _Tally:
    """Reads of one file, or failures of one command."""

    def __init__(self) -> None:
        self.count, self.tokens, self.item, self.detail = 0, 0, "", ""


class _OpenResult:
    """A large result that no reply has used yet."""

    def __init__(self, name: str, item: str, tokens: int, markers: frozenset[str], requests: int) -> None:
        self.name, self.item, self.tokens, self.markers, self.requests_before = name, item, tokens, markers, requests


class SessionObserver:
    """Reads the messages of a session in order; `finish` returns what it noticed."""

    def __init__(self) -> None:
        self._noticed: list[Observation] = []
        self._requests_by_item: dict[str | None, CachedRequest] = {}
        """The newest request on the path to each message."""
        self._breaks: list[tuple[str, str, int, float]] = []
        self._calls: dict[str, _ToolCall] = {}
        self._reads: dict[str, _Tally] = {}
        self._failures: dict[str, _Tally] = {}
        self._open_results: list[_OpenResult] = []
        self._said: list[tuple[int, Message]] = []
        self._lost: list[LostFact] = []
        self._visible_tokens = 0
        self._fixed: tuple[int, str] | None = None
        self._tools_called: set[str] = set()
        self._requests = self._input_tokens = self._cached_tokens = 0
        self._spec, self._last_item, self._ordinal = ModelSpec(), "", 0
        self._compactions = 0

    def add(self, each: SourceMessage) -> None:
        self._last_item, self._ordinal = each.id, self._ordinal + 1
        if each.compaction is not None:
            self._add_compaction(each.compaction)
        elif each.message.role == "assistant":
            self._add_reply(each)
        elif each.message.role == "tool":
            for result in each.message.tool_results:
                self._add_result(result, each.id)
        elif each.message.role == "user":
            self._add_prompt(each)
        self._visible_tokens += _estimate_tokens(each.message)
        if each.id not in self._requests_by_item and each.parent in self._requests_by_item:
            self._requests_by_item[each.id] = self._requests_by_item[each.parent]

    def _add_reply(self, each: SourceMessage) -> None:
        usage, calls = each.usage, each.message.tool_calls
        if usage is not None and not usage.estimated and usage.input_tokens:
            self._add_request(each, usage)
        for call in calls:
            self._tools_called.add(call.name)
            try:
                parsed = from_json(call.arguments or "{}")
            except ValueError:
                parsed = None
            arguments = parsed if is_object(parsed) else {}
            self._calls[call.id] = _ToolCall(call, arguments, each.id)
            if _EDIT_NAME.search(call.name) or "apply_patch" in call.arguments:
                # What was edited is read again for a reason, and a command may now succeed.
                self._failures.clear()
                path = _get_first(arguments, _PATH_FIELDS)
                for key in [
                    key for key in self._reads if (path and path in key) or (not path and key in call.arguments)
                ]:
                    self._end_read(key)
        if self._open_results:
            texts = [part.text for part in each.message.parts if isinstance(part, TextPart)]
            words = set(_WORD.findall(" ".join([*texts, *(call.arguments for call in calls)])[:MAX_SCANNED_CHARS]))
            self._open_results = [result for result in self._open_results if result.markers.isdisjoint(words)]

    def _add_request(self, each: SourceMessage, usage: Usage) -> None:
        if usage.model and not is_local_model(usage.model):
            self._spec = model_spec_for(usage.model)
        self._requests += 1
        self._input_tokens += usage.input_tokens
        self._cached_tokens += usage.cache_read_tokens
        if self._fixed is None:
            self._fixed = (max(0, usage.input_tokens - self._visible_tokens), each.id)
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
        if found is not None and (found.tokens or 0) >= MIN_BREAK_TOKENS:
            self._breaks.append((found.cause.kind, each.id, found.tokens or 0, found.cost_usd or 0.0))

    def _add_result(self, result: ToolResultPart, item: str) -> None:
        made = self._calls.pop(result.call_id, None)
        if made is None:
            return
        name, text = made.call.name.lower(), result.text
        tokens = len(text) // CHARS_PER_TOKEN
        command = _get_first(made.arguments, _COMMAND_FIELDS) if name in _SHELL_TOOLS else None
        key = None
        if name in _READ_TOOLS and (path := _get_first(made.arguments, _PATH_FIELDS)) is not None:
            # Another range of the file is another read.
            key = path if len(made.arguments) == 1 else f"{path} {_cut(made.call.arguments)}"
        elif command is not None and _READ_COMMAND.match(command):
            key = command
        exit_code = _EXIT_CODE.search(text[:2_000]) if command is not None else None
        is_failed = result.is_error or (exit_code is not None and exit_code[1] != "0")
        if command is not None:
            if is_failed:
                tally = self._failures.setdefault(command, _Tally())
                tally.count, tally.tokens, tally.item = tally.count + 1, tally.tokens + tokens, tally.item or item
                tally.detail = next((line for line in reversed(text.strip().splitlines()) if line.strip()), "")
                if tally.count >= MIN_FAILURES:
                    self._note_failure(command, tally)
            else:
                self._failures.pop(command, None)
        if key is not None and not is_failed:
            tally = self._reads.setdefault(key, _Tally())
            tally.tokens += tokens if tally.count else 0
            tally.count, tally.item = tally.count + 1, item
        if tokens >= MIN_RESULT_TOKENS and not is_failed and len(self._open_results) < MAX_OPEN_RESULTS:
            named = set(_WORD.findall(made.call.arguments))
            words = sorted(set(_WORD.findall(text[:MAX_SCANNED_CHARS])) - named)
            markers = frozenset(words[:: max(1, len(words) // MAX_MARKERS)])
            self._open_results.append(_OpenResult(made.call.name, item, tokens, markers, self._requests))

    def _note_failure(self, command: str, tally: _Tally) -> None:
        """Notes the command, or counts one more failure of it."""
        text = f"{_cut(command)} → {_cut(tally.detail)}"
        self._noticed = [each for each in self._noticed if (each.kind, each.item) != ("failed_command", tally.item)]
        cost = self._price_input(tally.tokens)
        self._notice(Observation("failed_command", text, tally.item, tally.count, tally.tokens, cost))

    def _end_read(self, key: str) -> None:
        tally = self._reads.pop(key)
        if tally.count >= MIN_READS and tally.tokens >= MIN_REREAD_TOKENS:
            cost = self._price_input(tally.tokens)
            self._notice(Observation("repeated_read", _cut(key), tally.item, tally.count, tally.tokens, cost))

    def _add_prompt(self, each: SourceMessage) -> None:
        text = each.message.text.strip()
        # Programs add messages of their own in the user's role, in tags.
        if not text or text.startswith("<") or len(text) > MAX_PROMPT_CHARS:
            return
        again = [fact for fact in self._lost if _is_said(fact, text)]
        for fact in again:
            self._lost.remove(fact)
        if again:
            tokens = len(text) // CHARS_PER_TOKEN
            self._notice(
                Observation("said_again", _cut(again[0].text), each.id, len(again), tokens, self._price_input(tokens))
            )
        if len(self._said) < MAX_SAID_MESSAGES:
            self._said.append((self._ordinal, each.message))

    def _add_compaction(self, compaction: SourceCompaction) -> None:
        self._end_results()
        self._compactions += 1
        self._lost = list(find_lost_facts(self._said, [compaction.summary]).facts)
        if compaction.preserved:
            # The newest messages stay in the window verbatim.
            preserved = " ".join(message.text for _, message in self._said[-len(compaction.preserved) :])
            self._lost = [fact for fact in self._lost if not _is_said(fact, preserved)]
        self._said = []

    def _end_results(self) -> None:
        """Notes the large results that no reply used, when they leave the window."""
        for result in self._open_results:
            carried = self._requests - result.requests_before
            if carried >= MIN_CARRIED_REQUESTS:
                cost = self._price_input(result.tokens) + self._price_reads(result.tokens, carried - 1)
                self._notice(Observation("unused_result", result.name, result.item, carried, result.tokens, cost))
        self._open_results = []

    def finish(self) -> list[Observation]:
        self._end_results()
        for key in list(self._reads):
            self._end_read(key)
        share = self._cached_tokens / max(1, self._input_tokens)
        is_long = self._input_tokens >= MIN_SHARE_INPUT_TOKENS and self._requests >= MIN_SHARE_REQUESTS
        if is_long and share < MAX_CACHE_SHARE and self._spec.cache_read_price is not None:
            missed = self._input_tokens - self._cached_tokens
            saving = self._price_input(missed) - self._price_reads(missed, 1)
            text = f"{share:.0%} of the input from the cache"
            self._notice(Observation("cache_share", text, self._last_item, self._requests, missed, saving))
        elif self._breaks:
            causes = Counter(cause for cause, *_ in self._breaks)
            text = ", ".join(f"{count} × {_CAUSES.get(cause, cause)}" for cause, count in causes.most_common())
            largest = max(self._breaks, key=lambda each: each[2])
            tokens, cost = sum(each[2] for each in self._breaks), sum(each[3] for each in self._breaks)
            self._notice(Observation("cache_break", text, largest[1], len(self._breaks), tokens, cost))
        if self._fixed is not None and self._fixed[0] >= MIN_FIXED_TOKENS:
            tokens, item = self._fixed
            cost = self._price_input(tokens) + self._price_reads(tokens, self._requests - 1)
            names = len(self._tools_called)
            text = f"{names} {'tool' if names == 1 else 'tools'} called"
            self._notice(Observation("fixed_prompt", text, item, self._requests, tokens, cost))
        return self._noticed

    def _notice(self, observation: Observation) -> None:
        if len(self._noticed) < MAX_OBSERVATIONS:
            self._noticed.append(observation)

    def _price_input(self, tokens: int) -> float:
        return float(tokens * (self._spec.input_price or Decimal(0)) / TOKENS_PER_PRICE)

    def _price_reads(self, tokens: int, requests: int) -> float:
        price = self._spec.cache_read_price or self._spec.input_price or Decimal(0)
        return float(tokens * requests * price / TOKENS_PER_PRICE)


def _compute_cost(usage: Usage, model: str, at: datetime) -> Cost:
    return model_spec_for(model).compute_cost(usage, at=at)


def _is_said(fact: LostFact, text: str) -> bool:
    """Whether a text has the values of a fact or, for a decision without any, most of its longer words."""
    lower = text.lower()
    if fact.values:
        return all(value.lower() in lower for value in fact.values)
    words = {word.lower() for word in _WORD.findall(fact.text)}
    return len(words) >= 3 and sum(word in lower for word in words) >= MIN_DECISION_SHARE * len(words)


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


def _get_first(arguments: dict[str, Any], names: Iterable[str]) -> str | None:
    """The first of these arguments. A command may be a list of words."""
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value:
            return " ".join(map(str, value[:100]))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return None


def _cut(text: str) -> str:
    flat = " ".join(text[: 4 * MAX_TEXT_CHARS].split())
    return flat if len(flat) <= MAX_TEXT_CHARS else f"{flat[: MAX_TEXT_CHARS - 1]}…"
