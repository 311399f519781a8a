"""Errors of providers, sorted: overflow, throttled, refused, invalid, unavailable.

Owns the words by which providers tell them apart; `tests/llm/bodies.json` has examples, and says which were recorded.
Only an overflow may lead to compaction, so an error counts as one only if the prompt is to blame.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from quire.errors import ModelError, ModelInvalid, ModelOverflow, ModelRefused, ModelThrottled, ModelUnavailable

_CODES = ("code", "type", "status", "reason", "error_code", "finish_reason")
_MESSAGES = ("message", "msg", "error", "detail", "raw", "error_description", "title")
_LONGEST = 600

_REFUSED = {
    "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "moderation_blocked", "safety",
    "prohibited_content", "image_safety", "refusal", "blocklist", "recitation", "guardrail_intervened",
}  # fmt: skip
_REFUSED_TEXT = re.compile(
    r"content (management|filter(ing)?|moderation) polic|content (was|has been) (flagged|filtered|blocked)"
    r"|(input|prompt|request|content) was (flagged|blocked|rejected) (by|for|as|due to)"
    r"|violat\w+ (of )?\S*( \S+){0,3} (usage|content|safety|use) polic|usage guidelines|safety system"
)
_SPENT = {
    "insufficient_quota", "billing_error", "billing_hard_limit_reached", "insufficient_balance", "credits_exhausted",
    "billing_not_active", "access_terminated",
}  # fmt: skip
_SPENT_TEXT = re.compile(r"credit balance is too low|insufficient (credits|balance)|requires more credits")
_THROTTLED = {
    "rate_limit_exceeded", "rate_limit_error", "rate_limited", "rate_limit_reached", "too_many_requests",
    "resource_exhausted", "throttlingexception", "tokens_per_minute", "requests_per_minute",
}  # fmt: skip
_THROTTLED_TEXT = re.compile(r"rate limit|too many requests|tokens per min|requests per min|\(tpm\)|\(rpm\)")
_OVERFLOW = {
    "context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "model_context_window_exceeded",
    "string_above_max_length", "prompt_too_long", "input_too_long",
}  # fmt: skip
_OVERFLOW_TEXT = re.compile(
    r"maximum context length|prompt is too long|input is too long|prompt contains \d+ tokens|prompt too long"
    r"|input (token count|length|prompt)?.{0,40}exceeds? (the|its) .{0,20}(context|maximum number of tokens|window)"
    r"|exceeds? the (available |model'?s? |maximum )*(context|window)|context (size|length|window) (is )?exceeded"
    r"|reduce the length of the (messages|input prompt|prompt)|context length is only|context the overflows"
    r"|input exceeds the context|tokens? in (your )?(request|prompt) exceed"
)
_ANSWER_TOO_LONG = re.compile(
    r"max_(completion_|output_|new_)?tokens[`'\"]?( or [`'\"]?max_completion_tokens[`'\"]?)?"
    r"( (is|value is))? (too large|must be (less|at most|between)|exceeds)"
    r"|max_(output_)?tokens: \d+ > \d+|supports at most \d+ completion tokens|maximum allowed number of output tokens"
    r"|fewer max_tokens"
)
_UNAVAILABLE = {
    "overloaded_error", "overloaded", "server_is_overloaded", "unavailable", "server_error", "api_error", "internal",
    "internal_server_error", "internalservererror", "service_unavailable", "timeout_error", "deadline_exceeded",
    "unavailable_error", "serviceunavailableexception", "engine_overloaded",
}  # fmt: skip
_UNAVAILABLE_TEXT = re.compile(r"overloaded|over capacity|loading model|server busy|timed out|temporarily unavailable")
_INVALID = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "invalid_argument",
    "permission_denied", "unauthenticated", "not_found", "model_not_found", "invalid_api_key", "badrequesterror",
    "request_too_large", "failed_precondition",
}  # fmt: skip
_PASSING = (408, 409, 425)
"""Client errors by number that a repeated call may not meet again."""

_NUMBER = r"(\d[\d,]*)"
# Each gives, by name, the tokens of the prompt, of the answer that was asked for, and of the window.
_COUNTS = tuple(
    re.compile(pattern.replace("PROMPT", rf"(?P<prompt>{_NUMBER})").replace("ANSWER", rf"(?P<answer>{_NUMBER})")
               .replace("WINDOW", rf"(?P<window>{_NUMBER})"))
    for pattern in (
        r"context length is WINDOW tokens.*?\(PROMPT (?:in the messages|in your prompt|of text input)[^)]*?ANSWER"
        r" (?:in the completion|for the completion|in the output)",
        r"exceed context limit: PROMPT \+ ANSWER > WINDOW",
        r"passed PROMPT input tokens and requested ANSWER output tokens.*?context length is only WINDOW",
        r"too large: ANSWER\. ?this model's maximum context length is WINDOW tokens and your request has PROMPT input",
        r"context length is WINDOW tokens.*?messages resulted in PROMPT tokens",
        r"context length is WINDOW tokens.*?request (?:has|contains)(?: at least)? PROMPT input tokens",
        r"prompt is too long: PROMPT tokens > WINDOW",
        r"input token count \(?PROMPT\)? exceeds the maximum number of tokens allowed \(?WINDOW",
        r"prompt contains PROMPT tokens.*?too large for model with WINDOW",
        r"request \(PROMPT tokens\) exceeds the available context size \(WINDOW tokens",
        r"keep the first PROMPT tokens.*?context length of only WINDOW tokens",
    )
)  # fmt: skip
_NO_ROOM = re.compile(r"max_(completion_)?tokens must be at least 1, got -")
_WAIT = re.compile(r"(?:try again|retry) (?:in|after) ((?:[\d.]+ ?(?:ms|h|m|s|seconds?|minutes?)\s*)+)")
_SPAN = re.compile(r"([\d.]+) ?(ms|h|m|s|seconds?|minutes?)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(slots=True)
class _Said:
    """What an error's body says: its codes in lower case, its messages, and some numbers."""

    codes: set[str] = field(default_factory=set[str])
    messages: list[str] = field(default_factory=list[str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    wait: float | None = None

    @property
    def text(self) -> str:
        return " ".join(self.messages).lower()

    @property
    def headline(self) -> str:
        """The message that says most: gateways put the provider's own behind one of theirs."""
        return max(self.messages, key=len, default="")[:_LONGEST]


def sort_error(
    status: int | None, body: Any, *, model: str | None = None, retry_after: float | None = None
) -> ModelError:
    """The error for a provider's answer: its HTTP status, if there is one, and its body, parsed or as text."""
    said = _Said()
    _read(body, said)
    told = f"{model or 'The model'} answered {status or 'with an error'}: {said.headline or 'no reason was given'}"
    kind = _kind(status, said)
    if kind is ModelThrottled:
        wait = retry_after if retry_after is not None else said.wait or _wait_in(said.text)
        return ModelThrottled(told, status=status, retry_after=wait)
    if kind is ModelOverflow:
        prompt, _, window = _counts(said)
        return ModelOverflow(told, status=status, tokens=prompt, window=window)
    return kind(told, status=status)


def _kind(status: int | None, said: _Said) -> type[ModelError]:
    text, codes = said.text, said.codes
    if codes & _REFUSED or _REFUSED_TEXT.search(text):
        return ModelRefused
    if status == 402 or codes & _SPENT or _SPENT_TEXT.search(text):
        return ModelInvalid
    if status == 429 or codes & _THROTTLED or (status != 200 and _THROTTLED_TEXT.search(text)):
        return ModelThrottled
    if (length := _length_fault(said)) is not None:
        return length
    return _by_status(status, said)


def _length_fault(said: _Said) -> type[ModelError] | None:
    """Overflow if the prompt is to blame; a request for too long an answer is invalid, however short the prompt."""
    prompt, answer, window = _counts(said)
    if _NO_ROOM.search(said.text):
        return ModelOverflow
    if prompt is not None and answer is not None:
        # Both together exceed the window: the larger one is to blame.
        return ModelOverflow if prompt >= (window or prompt) or prompt > answer else ModelInvalid
    if prompt is None and _ANSWER_TOO_LONG.search(said.text):
        return ModelInvalid
    return ModelOverflow if said.codes & _OVERFLOW or _OVERFLOW_TEXT.search(said.text) else None


def _by_status(status: int | None, said: _Said) -> type[ModelError]:
    if status is not None and 400 <= status < 500 and status not in _PASSING:
        return ModelInvalid
    if status is None or status < 400:
        unavailable = said.codes & _UNAVAILABLE or _UNAVAILABLE_TEXT.search(said.text)
        return ModelInvalid if said.codes & _INVALID and not unavailable else ModelUnavailable
    return ModelUnavailable


def _counts(said: _Said) -> tuple[int | None, int | None, int | None]:
    """Tokens of the prompt, of the answer that was asked for, and of the window, as far as the error tells them."""
    if "n_prompt_tokens" in said.numbers:
        return said.numbers["n_prompt_tokens"], None, said.numbers.get("n_ctx")
    for pattern in _COUNTS:
        if found := pattern.search(said.text):
            named = {name: int(value.replace(",", "")) for name, value in found.groupdict().items() if value}
            return named.get("prompt"), named.get("answer"), named.get("window")
    return None, None, None


def _wait_in(text: str) -> float | None:
    found = _WAIT.search(text)
    if found is None:
        return None
    return sum(float(number.rstrip(".") or 0) * _SECONDS[_unit(unit)] for number, unit in _SPAN.findall(found[1]))


def _unit(word: str) -> str:
    return word if word in _SECONDS else word[0]


def _read(body: object, said: _Said) -> None:
    """Gather what a body says, wherever it says it: gateways wrap errors in errors, as objects or as JSON text."""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    if isinstance(body, str):
        inner = _json_in(body)
        if inner is None:
            said.messages.append(body.strip())
        else:
            _read(inner, said)
    elif isinstance(body, Mapping):
        for key, value in cast("Mapping[str, object]", body).items():
            _read_field(key, value, said)
    elif isinstance(body, list):
        for item in cast("list[object]", body):
            _read(item, said)


def _read_field(key: str, value: object, said: _Said) -> None:
    if isinstance(value, Mapping | list):
        _read(cast("object", value), said)
    elif isinstance(value, str):
        if key in _CODES:
            said.codes.add(value.lower())
        elif key in _MESSAGES:
            _read(value, said)
        elif key == "retryDelay":
            said.wait = _wait_in(f"retry in {value}")
    elif isinstance(value, int) and key in ("n_prompt_tokens", "n_ctx"):
        said.numbers[key] = value


def _json_in(text: str) -> object:
    """The object in a text that is JSON, or that quotes it after some words."""
    start = min((at for at in (text.find("{"), text.find("[{")) if at >= 0), default=-1)
    if start < 0:
        return None
    with suppress(ValueError):
        value, _ = json.JSONDecoder().raw_decode(text[start:])
        return cast("object", value) if isinstance(value, dict | list) else None
    return None


def from_exception(exc: BaseException, *, model: str | None = None) -> ModelError | None:
    """The sorted error for one of pydantic-ai's or the HTTP client's; None for what is not the provider's doing."""
    from pydantic_ai import exceptions as foreign

    match exc:
        case foreign.ModelHTTPError():
            return sort_error(exc.status_code, exc.body or exc.message, model=model, retry_after=exc.retry_after)
        case foreign.ModelConnectionError() | foreign.ModelRequestTimeout():
            return ModelUnavailable(f"{model or 'The model'} cannot be reached: {_innermost(exc)}")
        case foreign.ModelAPIError():
            return sort_error(None, exc.body or exc.message, model=model, retry_after=exc.retry_after)
        case foreign.ContentFilterError():
            return ModelRefused(f"{model or 'The model'} refused: {exc.message}")
        case foreign.UnexpectedModelBehavior():
            return ModelUnavailable(f"{model or 'The model'} gave an answer that cannot be read: {exc.message}")
        case foreign.UserError():
            return ModelInvalid(exc.message)
        case _:
            return _from_transport(exc, model=model)


def _from_transport(exc: BaseException, *, model: str | None) -> ModelError | None:
    import httpx2

    if isinstance(exc, httpx2.HTTPStatusError):
        return sort_error(exc.response.status_code, exc.response.text, model=model)
    if isinstance(exc, OSError | httpx2.HTTPError | httpx2.StreamError):
        return ModelUnavailable(f"{model or 'The model'} cannot be reached: {_innermost(exc)}")
    return None


def _innermost(exc: BaseException) -> str:
    """The cause at the bottom, which says `connection refused` where the top says `connection error`."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return str(exc) or type(exc).__name__
