"""Maps errors of providers and of the HTTP client to `ModelError` classes.

Provider errors are context overflow, rate limit, refusal, rejected, unavailable. This module owns the error codes and
phrases that distinguish them; `tests/llm/error_bodies.json` has examples and marks those that were recorded. Only an
overflow may lead to compaction, so an error counts as one only if the prompt is to blame.

Transport errors are DNS, connection, TLS, timeout, protocol, reset. Their message says what happened, to which host,
and what to do next. It has no URL and no header, because both can contain an API key. The HTTP client is imported only
to map an error: this module works without an extra.
"""

import json
import math
import re
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from quire.errors import (
    ModelContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelRequestRejected,
    ModelTimeout,
    ModelUnavailable,
    QuireError,
)

if TYPE_CHECKING:
    import httpx2

_CODE_FIELDS = ("code", "type", "status", "reason", "error_code", "finish_reason")
_MESSAGE_FIELDS = ("message", "msg", "error", "detail", "raw", "error_description", "title")
_COUNT_FIELDS = ("n_prompt_tokens", "n_ctx")
_MAX_COUNT = 1_000_000_000
"""Maximum token count that is taken from a field of an error."""
_MAX_MESSAGE_CHARS = 600
"""Maximum characters of a provider's message in an error."""
MAX_CLASSIFIED_CHARS = 4_096
"""Maximum characters of a provider's messages that are searched for phrases. A provider may repeat a client's text."""
MAX_BODY_DEPTH = 32
"""Maximum depth of an error body in which codes and messages are collected."""
_MAX_CAUSES = 20
"""Maximum length of a chain of causes that is followed."""
_MAX_REASON_CHARS = 300
"""Maximum characters of a transport error's reason, which may quote what the server sent."""

_REFUSED_CODES = {
    "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "moderation_blocked", "safety",
    "prohibited_content", "image_safety", "refusal", "blocklist", "recitation", "guardrail_intervened",
}  # fmt: skip
_REFUSED_TEXT = re.compile(
    r"content (management|filter(ing)?|moderation) polic|content (was|has been) (flagged|filtered|blocked)"
    r"|(input|prompt|request|content) was (flagged|blocked|rejected) (by|for|as|due to)"
    r"|violat\w+ (of )?\S*( \S+){0,3} (usage|content|safety|use) polic|usage guidelines|safety system"
)
_QUOTA_CODES = {
    "insufficient_quota", "billing_error", "billing_hard_limit_reached", "insufficient_balance", "credits_exhausted",
    "billing_not_active", "access_terminated",
}  # fmt: skip
_QUOTA_TEXT = re.compile(r"credit balance is too low|insufficient (credits|balance)|requires more credits")
_RATE_LIMIT_CODES = {
    "rate_limit_exceeded", "rate_limit_error", "rate_limited", "rate_limit_reached", "too_many_requests",
    "resource_exhausted", "throttlingexception", "tokens_per_minute", "requests_per_minute",
}  # fmt: skip
_RATE_LIMIT_TEXT = re.compile(r"rate limit|too many requests|tokens per min|requests per min|\(tpm\)|\(rpm\)")
_OVERFLOW_CODES = {
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
_MAX_TOKENS_TOO_LARGE_TEXT = re.compile(
    r"max_(completion_|output_|new_)?tokens[`'\"]?( or [`'\"]?max_completion_tokens[`'\"]?)?"
    r"( (is|value is))? (too large|must be (less|at most|between)|exceeds)"
    r"|max_(output_)?tokens: \d+ > \d+|supports at most \d+ completion tokens|maximum allowed number of output tokens"
    r"|fewer max_tokens"
)
_UNAVAILABLE_CODES = {
    "overloaded_error", "overloaded", "server_is_overloaded", "unavailable", "server_error", "api_error", "internal",
    "internal_server_error", "internalservererror", "service_unavailable", "timeout_error", "deadline_exceeded",
    "unavailable_error", "serviceunavailableexception", "engine_overloaded",
}  # fmt: skip
_UNAVAILABLE_TEXT = re.compile(r"overloaded|over capacity|loading model|server busy|timed out|temporarily unavailable")
_REJECTED_CODES = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "invalid_argument",
    "permission_denied", "unauthenticated", "not_found", "model_not_found", "invalid_api_key", "badrequesterror",
    "request_too_large", "failed_precondition",
}  # fmt: skip
_TRANSIENT_CLIENT_STATUSES = (408, 409, 425)
"""4xx statuses for which a retry may succeed."""

_NUMBER = r"(\d[\d,]*+)"
# Named groups: tokens of the prompt, of the requested answer, and of the context window. Gaps are bounded, because an
# unbounded one is searched to the end of the text from every place where the phrase before it occurs.
_TOKEN_COUNT_PATTERNS = tuple(
    re.compile(pattern.replace("PROMPT", rf"(?P<prompt>{_NUMBER})").replace("ANSWER", rf"(?P<answer>{_NUMBER})")
               .replace("WINDOW", rf"(?P<window>{_NUMBER})"))
    for pattern in (
        r"context length is WINDOW tokens.{0,200}?\(PROMPT (?:in the messages|in your prompt|of text input)[^)]{0,200}?"
        r"ANSWER (?:in the completion|for the completion|in the output)",
        r"exceed context limit: PROMPT \+ ANSWER > WINDOW",
        r"passed PROMPT input tokens and requested ANSWER output tokens.{0,200}?context length is only WINDOW",
        r"too large: ANSWER\. ?this model's maximum context length is WINDOW tokens and your request has PROMPT input",
        r"context length is WINDOW tokens.{0,200}?messages resulted in PROMPT tokens",
        r"context length is WINDOW tokens.{0,200}?request (?:has|contains)(?: at least)? PROMPT input tokens",
        r"prompt is too long: PROMPT tokens > WINDOW",
        r"input token count \(?PROMPT\)? exceeds the maximum number of tokens allowed \(?WINDOW",
        r"prompt contains PROMPT tokens.{0,200}?too large for model with WINDOW",
        r"request \(PROMPT tokens\) exceeds the available context size \(WINDOW tokens",
        r"keep the first PROMPT tokens.{0,200}?context length of only WINDOW tokens",
    )
)  # fmt: skip
_NO_ROOM_TEXT = re.compile(r"max_(completion_)?tokens must be at least 1, got -")
_DURATION_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{0,9})?"
_RETRY_AFTER_TEXT = re.compile(
    r"(?:try again|retry) (?:in|after) "
    rf"((?:{_DURATION_NUMBER} ?(?:ms|h|m|s|seconds?|minutes?)\s*)+)"
)
_DURATION_PATTERN = re.compile(rf"({_DURATION_NUMBER}) ?(ms|h|m|s|seconds?|minutes?)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_KEY_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_(?:[A-Z]+_)*(?:KEY|TOKEN)\b")


@dataclass(slots=True)
class _ErrorDetails:
    """Contents of an error body: its codes in lower case, its messages, and token counts."""

    codes: set[str] = field(default_factory=set[str])
    messages: list[str] = field(default_factory=list[str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    retry_after: float | None = None

    @property
    def text(self) -> str:
        return " ".join(message[:MAX_CLASSIFIED_CHARS] for message in self.messages)[:MAX_CLASSIFIED_CHARS].lower()

    @property
    def headline(self) -> str:
        """The longest message: gateways wrap the provider's own message in a short one."""
        return max(self.messages, key=len, default="")[:_MAX_MESSAGE_CHARS]


def classify_error(
    status: int | None, body: Any, *, model: str | None = None, retry_after: float | None = None
) -> ModelError:
    """Returns the error for a provider's response: its HTTP status, if any, and its body, parsed or as text."""
    details = _ErrorDetails()
    _collect_details(body, details)
    message = f"{model or 'The model'} answered {status or 'with an error'}: {details.headline or 'no reason given'}"
    error_class = _classify_details(status, details)
    if error_class is ModelRateLimited:
        delay = retry_after if retry_after is not None else details.retry_after or _parse_retry_after(details.text)
        return ModelRateLimited(message, status=status, retry_after=delay)
    if error_class is ModelContextOverflow:
        fields = _read_count_fields(body)
        prompt, _, window = _parse_token_counts(details)
        prompt, window = fields or (prompt, window)
        return ModelContextOverflow(
            message, status=status, tokens=prompt, window=window, is_structured=fields is not None
        )
    return error_class(message, status=status)


def read_error_message(body: object) -> str:
    """The provider's own words in the body of an error, or an empty text."""
    details = _ErrorDetails()
    _collect_details(body, details)
    return details.headline


def classify_response(response: "httpx2.Response", *, model: str) -> ModelError:
    """Returns the error for a response that has been read."""
    try:
        delay = float(response.headers.get("retry-after", ""))
    except ValueError:
        delay = math.nan
    retry_after = delay if math.isfinite(delay) and delay >= 0 else None
    return classify_error(response.status_code, response.text, model=model, retry_after=retry_after)


def _classify_details(status: int | None, details: _ErrorDetails) -> type[ModelError]:
    text, codes = details.text, details.codes
    if codes & _REFUSED_CODES or _REFUSED_TEXT.search(text):
        return ModelRefused
    if status == 402 or codes & _QUOTA_CODES or _QUOTA_TEXT.search(text):
        return ModelRequestRejected
    if status == 429 or codes & _RATE_LIMIT_CODES or (status != 200 and _RATE_LIMIT_TEXT.search(text)):
        return ModelRateLimited
    if (length_error := _classify_length(details)) is not None:
        return length_error
    if status is not None and 400 <= status < 500 and status not in _TRANSIENT_CLIENT_STATUSES:
        return ModelRequestRejected
    if status is None or status < 400:
        unavailable = codes & _UNAVAILABLE_CODES or _UNAVAILABLE_TEXT.search(text)
        return ModelRequestRejected if codes & _REJECTED_CODES and not unavailable else ModelUnavailable
    return ModelUnavailable


def _classify_length(details: _ErrorDetails) -> type[ModelError] | None:
    """Overflow if the prompt is too long. A `max_tokens` that is too large is a rejected request, not an overflow."""
    prompt, answer, window = _parse_token_counts(details)
    if _NO_ROOM_TEXT.search(details.text):
        return ModelContextOverflow
    if prompt is not None and answer is not None:
        # Prompt and answer together exceed the window: the larger one is to blame.
        return ModelContextOverflow if prompt >= (window or prompt) or prompt > answer else ModelRequestRejected
    if prompt is None and _MAX_TOKENS_TOO_LARGE_TEXT.search(details.text):
        return ModelRequestRejected
    return ModelContextOverflow if details.codes & _OVERFLOW_CODES or _OVERFLOW_TEXT.search(details.text) else None


def _parse_token_counts(details: _ErrorDetails) -> tuple[int | None, int | None, int | None]:
    """Returns the tokens of the prompt, of the requested answer, and of the window, where the error states them."""
    if "n_prompt_tokens" in details.numbers:
        return details.numbers["n_prompt_tokens"], None, details.numbers.get("n_ctx")
    for pattern in _TOKEN_COUNT_PATTERNS:
        if match := pattern.search(details.text):
            counts = {name: int(value.replace(",", "")) for name, value in match.groupdict().items() if value}
            return counts.get("prompt"), counts.get("answer"), counts.get("window")
    return None, None, None


def _read_count_fields(body: object) -> tuple[int, int] | None:
    """Returns the tokens of the prompt and of the window from fields of the outermost error, if it has them.

    Nested objects and JSON inside texts do not count: they may repeat what a client sent.
    """
    if isinstance(body, str | bytes):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    for each in (body, cast("Mapping[str, object]", body).get("error") if isinstance(body, Mapping) else None):
        if isinstance(each, Mapping):
            prompt, window = (cast("Mapping[str, object]", each).get(name) for name in _COUNT_FIELDS)
            if isinstance(prompt, int) and isinstance(window, int) and 0 < prompt <= _MAX_COUNT >= window:
                return prompt, window
    return None


def _parse_retry_after(text: str) -> float | None:
    match = _RETRY_AFTER_TEXT.search(text)
    if match is None:
        return None
    return sum(
        float(number) * _UNIT_SECONDS[unit if unit in _UNIT_SECONDS else unit[0]]
        for number, unit in _DURATION_PATTERN.findall(match[1])
    )


def _collect_details(body: object, details: _ErrorDetails, *, depth: int = 0) -> None:
    """Collects codes, messages and counts of nested errors: gateways wrap errors in errors, as objects or JSON text."""
    if depth > MAX_BODY_DEPTH:
        return
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    if isinstance(body, str):
        # The text may contain JSON, with other words before it.
        start = min((at for at in (body.find("{"), body.find("[{")) if at >= 0), default=-1)
        inner: object = None
        if start >= 0:
            with suppress(ValueError, RecursionError):
                inner = json.JSONDecoder().raw_decode(body[start:])[0]
        if isinstance(inner, dict | list):
            _collect_details(cast("object", inner), details, depth=depth + 1)
        else:
            details.messages.append(body.strip())
    elif isinstance(body, Mapping):
        for key, value in cast("Mapping[str, object]", body).items():
            if isinstance(value, Mapping | list) or (isinstance(value, str) and key in _MESSAGE_FIELDS):
                _collect_details(cast("object", value), details, depth=depth + 1)
            elif isinstance(value, str) and key in _CODE_FIELDS:
                details.codes.add(value.lower())
            elif isinstance(value, str) and key == "retryDelay":
                details.retry_after = _parse_retry_after(f"retry in {value[:_MAX_MESSAGE_CHARS]}")
            elif isinstance(value, int) and key in _COUNT_FIELDS:
                details.numbers[key] = value
    elif isinstance(body, list):
        for item in cast("list[object]", body):
            _collect_details(item, details, depth=depth + 1)


def explain_unusable_model(model: str, error: ModelRequestRejected) -> ModelRequestRejected:
    """The error of a model that cannot be built, with advice for users: a provider's own advice is for programs."""
    key = _KEY_VARIABLE.search(str(error))
    reason = f"{key[0]} is not set" if key is not None else str(error).partition(". ")[0].rstrip(".")
    return ModelRequestRejected(
        f"The model {model} cannot be used: {reason}. Set its provider's API key in the environment, or choose another "
        "model; `quire init` detects API keys and local servers."
    )


@contextmanager
def map_transport_errors(
    *, target: str = "the server", url_name: str = "`base_url`", timeout_name: str = "the timeout"
) -> Generator[None]:
    """Raises transport errors as `ModelError`; others pass unchanged. Parameters as in `map_transport_error`."""
    try:
        yield
    except Exception as exc:
        error = map_transport_error(exc, target=target, url_name=url_name, timeout_name=timeout_name)
        if error is None:
            raise
        raise error from exc


def map_transport_error(
    exc: BaseException,
    *,
    target: str = "the server",
    url_name: str = "`base_url`",
    timeout_name: str = "the timeout",
) -> ModelError | None:
    """Maps an exception that is a transport error or is caused by one, or None for any other.

    `target` is what was called, for errors that name no host. `url_name` and `timeout_name` are what the user can
    change: the setting that holds the URL, and the one that allows more time.
    """
    import httpx2

    if isinstance(exc, QuireError):
        return None
    transport_classes = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)
    found = next((each for each in _iter_causes(exc) if isinstance(each, transport_classes)), None)
    try:
        host = cast(Any, found).request.url.netloc.decode()
    except (AttributeError, RuntimeError):
        # Not every exception knows the request that failed.
        host = None
    build = TransportErrorBuilder(host or target, url_name, timeout_name)
    match found:
        case None | httpx2.HTTPStatusError():
            return None
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return build.invalid_url(str(found))
        case httpx2.LocalProtocolError():
            return build.invalid_request()
        case httpx2.ConnectTimeout():
            return build.connect_timeout()
        case httpx2.TimeoutException() | TimeoutError():
            return build.timeout()
        case httpx2.ConnectError():
            return build.failed_connection(found)
        case httpx2.RemoteProtocolError():
            return build.invalid_response(found)
        case httpx2.NetworkError() | ConnectionError():
            return build.lost_connection(found)
        case _:
            return build.failed_call(found)


class TransportErrorBuilder(NamedTuple):
    """Builds the error of each kind of transport failure; the same one whichever HTTP client met it."""

    host: str
    url_name: str
    timeout_name: str

    def invalid_url(self, reason: str) -> ModelError:
        return ModelRequestRejected(f"Cannot call {self.host}: {reason.rstrip('.')}; check {self.url_name}.")

    def invalid_request(self) -> ModelError:
        # Without the reason, which quotes the invalid header.
        return ModelRequestRejected(
            f"Cannot call {self.host}: the request is not valid HTTP; check the API key and headers for line breaks."
        )

    def redirected(self) -> ModelError:
        return ModelUnavailable(
            f"{self.host} redirects to another address, which Quire does not follow with credentials; set "
            f"{self.url_name} to the final address."
        )

    def connect_timeout(self) -> ModelError:
        return ModelTimeout(f"Cannot connect to {self.host} in time: check {self.url_name} and the network.")

    def timeout(self) -> ModelError:
        return ModelTimeout(f"No answer from {self.host} in time: retry later, or raise {self.timeout_name}.")

    def failed_connection(self, exc: BaseException) -> ModelError:
        host, url_name = self.host, self.url_name
        text = f"Cannot connect to {host}: {_get_reason(exc)}; check {url_name} and the network."
        for cause in _iter_causes(exc, follow_hidden=True):
            match cause:
                case socket.gaierror():
                    text = f"Cannot find {host}: check {url_name} and the network."
                case ssl.SSLCertVerificationError():
                    text = f"Cannot verify the TLS certificate of {host}: {cause.verify_message}; check {url_name}."
                case ssl.SSLError():
                    reason = (cause.reason or "unknown reason").replace("_", " ").lower()
                    text = f"Cannot open a TLS connection to {host}: {reason}; check {url_name}: `http` or `https`?"
                case ConnectionRefusedError():
                    refused = f"connection refused; check {url_name} and that the server is running"
                    text = f"Cannot connect to {host}: {refused}."
                case _:
                    continue
            break
        return ModelUnavailable(text)

    def invalid_response(self, exc: BaseException) -> ModelError:
        problem = f"The response of {self.host} is incomplete or not HTTP: {_get_reason(exc)}"
        return ModelUnavailable(f"{problem}; retry later, or check {self.url_name}.")

    def lost_connection(self, exc: BaseException) -> ModelError:
        return ModelUnavailable(f"The connection to {self.host} was lost: {_get_reason(exc)}; retry later.")

    def failed_call(self, exc: BaseException) -> ModelError:
        return ModelUnavailable(f"The call of {self.host} failed: {_get_reason(exc)}; retry later.")


def _iter_causes(exc: BaseException, *, follow_hidden: bool = False) -> Iterator[BaseException]:
    """Yields the exception and its causes; of an exception group, the first. With `follow_hidden` also those that the
    HTTP client hides by `raise … from None`: the error of the socket is among them."""
    current: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if current is None:
            return
        if isinstance(current, BaseExceptionGroup):
            current = cast("tuple[BaseException, ...]", cast(Any, current).exceptions)[0]
        yield current
        hidden = current.__context__ if current.__suppress_context__ and follow_hidden else None
        current = current.__cause__ or hidden


def _get_reason(exc: BaseException) -> str:
    """Returns the message of the root cause: outer exceptions often have none, or say only `connection error`."""
    *_, root = _iter_causes(exc, follow_hidden=True)
    return (getattr(root, "strerror", None) or str(root) or type(root).__name__)[:_MAX_REASON_CHARS].rstrip(".")
