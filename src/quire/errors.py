"""Error classes: every error that Quire raises on purpose, as one tree.

QuireError
├── NotFound
│   ├── ConversationNotFound
│   ├── BranchNotFound
│   ├── EntryNotFound
│   ├── BlobNotFound
│   ├── DocumentNotFound
│   ├── MemoryNotFound
│   ├── KeyNotFound
│   ├── UserNotFound
│   ├── RequestNotFound
│   └── ResponseNotFound
├── Conflict
│   ├── ConversationExists
│   ├── StaleHead
│   ├── StaleCompaction
│   ├── StaleSegment
│   ├── DirectoryConflict
│   ├── MemoryRetired
│   ├── TurnInProgress
│   └── TurnLeaseLost
├── AccessDenied
│   ├── InvalidKey
│   │   └── SignInRequired
│   ├── SignInRefused
│   ├── InsufficientScope
│   ├── RoleRequired
│   ├── ModelNotAllowed
│   └── CrossOriginRequest
├── TooManyRequests
│   └── SpendReserved
├── RequestTooLarge
├── RequestTimeout
├── WorkTimeout
├── InvalidEntry
├── InvalidRequest
│   └── InvalidScim
├── InvalidConfiguration
├── ContextOverflow
├── StorageQuotaReached
├── SpendCapReached
│   └── DailyBudgetReached
├── UnknownPrice
├── UnknownStrategy
├── IllegalCut
├── ImportFailed
├── PathRefused
├── UnknownTokenizer
├── UnreadableSegment
├── IntegrityViolation
├── StoreError
│   ├── StoreUnavailable
│   │   ├── StoreReadOnly
│   │   ├── StoreFull
│   │   └── StoreRolledBack
│   ├── StoreBusy
│   ├── ObjectStorageUnavailable
│   └── SchemaOutdated
├── ModelError
│   ├── ModelContextOverflow
│   ├── ModelRateLimited
│   ├── ModelRefused
│   ├── ModelRequestRejected
│   └── ModelUnavailable
│       └── ModelTimeout
├── SummaryFailed
├── SignInUnavailable
└── MissingExtra

A class's docstring is its default message; the message says what happened, to which item, and what to do next.
"""

import inspect
from collections.abc import Sequence
from math import floor, log10
from typing import Literal


def format_usd(amount: float, decimals: int = 4) -> str:
    """US dollars with this number of decimals. A sum that would be printed as zero has its first two digits."""
    if 0 < amount < 10**-decimals:
        digits = f"{amount:.{1 - floor(log10(amount))}f}".rstrip("0")
        return f"${digits}"
    return f"${amount:,.{decimals}f}"


class QuireError(Exception):
    """Something went wrong in Quire."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class NotFound(QuireError):
    """No such item."""


class ConversationNotFound(NotFound):
    """This tenant has no such conversation; create it first, or check the tenant."""


class BranchNotFound(NotFound):
    """The conversation has no such branch; list its branches."""


class EntryNotFound(NotFound):
    """The branch has no entry with that number; entries are numbered from 1 to the branch's head."""


class BlobNotFound(NotFound):
    """This tenant has no blob with that digest; upload it first."""


class DocumentNotFound(NotFound):
    """There is no such file in the vault or the project; check the path, which is relative to its root."""


class MemoryNotFound(NotFound):
    """This tenant has no memory with that id; list the agent's memories."""


class KeyNotFound(NotFound):
    """This tenant has no API key with that id; `quire key list` lists them."""


class UserNotFound(NotFound):
    """This tenant has no such person; only people who have signed in once are known."""


class RequestNotFound(NotFound):
    """This tenant has no request with that id; only requests with a reply are recorded."""


class ResponseNotFound(NotFound):
    """This tenant has no response with that id, or it was deleted; send the whole conversation instead."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        super().__init__(f"Response with id '{response_id}' not found.")


class Conflict(QuireError):
    """A concurrent change came first; read the current state and retry."""


class DirectoryConflict(Conflict):
    """The directory has another person with this name; change one of them."""

    scim_type = "uniqueness"


class ConversationExists(Conflict):
    """A conversation with that id exists; choose another id, or purge the existing one."""


class StaleHead(Conflict):
    """The branch has new entries since it was read; append after its current head, or fork at the old one."""


class StaleCompaction(Conflict):
    """A concurrent compaction or undo came first; plan again from the branch's current state."""


class StaleSegment(Conflict):
    """The segment does not match the messages as they are now; list the segments again and rebuild the missing ones."""


class MemoryRetired(Conflict):
    """The memory is already retired; correct the one that replaced it, or add a new one."""


class TurnInProgress(Conflict):
    """A turn is in progress on this branch; wait for its end, or stop it."""


class TurnLeaseLost(Conflict):
    """Another server process took over this turn, because its lease was not renewed in time; send the question again
    with the same `after` to get its answer."""


class AccessDenied(QuireError):
    """The caller is not allowed to access this resource."""


class InvalidKey(AccessDenied):
    """The request has no valid API key; send one as `Authorization: Bearer quire_…`."""


class SignInRequired(InvalidKey):
    """The session has ended; sign in again."""


class SignInRefused(AccessDenied):
    """The identity provider's answer does not let this person in."""


class SignInUnavailable(QuireError):
    """The identity provider does not answer; try again later. People who are signed in already can go on."""


class InsufficientScope(AccessDenied):
    """The API key lacks the required scope; use a key that was created with it."""


class RoleRequired(AccessDenied):
    """None of the caller's roles allows this; ask an owner of the tenant."""


class ModelNotAllowed(AccessDenied):
    """The API key does not allow this model."""

    def __init__(self, model: str, *, allowed: Sequence[str]) -> None:
        super().__init__(
            f"The API key does not allow the model {model!r}. It allows: {', '.join(allowed)}. "
            "Choose one of these, or use another key."
        )


class CrossOriginRequest(AccessDenied):
    """The request comes from another site or names another host; open the page at this server's address."""


class TooManyRequests(QuireError):
    """The API key exceeded its rate limit; retry after `retry_after` seconds."""

    def __init__(self, message: str | None = None, *, retry_after: int = 1) -> None:
        self.retry_after = retry_after
        super().__init__(message)


SpendScope = Literal["conversation", "key", "tenant"]
"""What a spend cap applies to."""


class SpendReserved(TooManyRequests):
    """Calls in progress may cost what is left of a spend cap."""

    def __init__(self, *, scope: SpendScope, spent: float, reserved: float, cap: float) -> None:
        self.scope, self.spent, self.reserved, self.cap = scope, spent, reserved, cap
        super().__init__(
            f"Of the {scope}'s cap of {format_usd(cap)}, {format_usd(spent)} is spent and {format_usd(reserved)} is "
            "reserved for calls in progress; retry when they have ended.",
            retry_after=2,
        )


class RequestTooLarge(QuireError):
    """The request body exceeds the server's limit; send less at once, or raise `max_request_bytes`."""


class RequestTimeout(QuireError):
    """The request body took too long to arrive; send it again over a faster connection."""


class WorkTimeout(QuireError):
    """The computation took too long and was stopped; send fewer or shorter messages at once."""


class InvalidEntry(QuireError):
    """The entry is not valid at its position in the log."""


class InvalidRequest(QuireError):
    """No valid request can be made from this; the message says why."""


class InvalidScim(InvalidRequest):
    """The SCIM request cannot be used; the message says why."""

    def __init__(self, message: str, *, scim_type: str) -> None:
        self.scim_type = scim_type
        """One of the detail errors of RFC 7644, section 3.12."""
        super().__init__(message)


class InvalidConfiguration(QuireError):
    """A configuration file or value is invalid; fix the field that the message names."""


class ContextOverflow(QuireError):
    """The parts of a request that cannot be reduced exceed the context window."""

    def __init__(self, *, needed_tokens: int, available_tokens: int, largest_items: Sequence[tuple[str, int]]) -> None:
        self.needed_tokens, self.available_tokens = needed_tokens, available_tokens
        self.largest_items = tuple(largest_items)
        items = ", ".join(f"{name} ({tokens:,} tokens)" for name, tokens in largest_items)
        unpin = " (`quire context pin --off`, `/unpin`)" if "pinned message" in items else ""
        super().__init__(
            f"The request needs {needed_tokens:,} tokens and there is room for {available_tokens:,}. "
            f"The largest items: {items}. "
            f"Shorten or remove one of them{unpin}, or choose a model with a larger window."
        )


class StorageQuotaReached(QuireError):
    """What is to be stored exceeds the tenant's quota of stored bytes."""

    def __init__(self, *, stored: int, added: int, quota: int) -> None:
        self.stored, self.added, self.quota = stored, added, quota
        super().__init__(
            f"The tenant stores {stored:,} bytes, and {added:,} more would exceed its quota of {quota:,}: nothing is "
            "stored or sent. Purge conversations (`quire conversation purge`), or ask the operator to raise "
            "`stored_bytes` in `tenant_quotas`."
        )


_SPEND_CAP_REMEDIES: dict[SpendScope, str] = {
    "conversation": "Raise `max_spend`, or start another conversation.",
    "key": "Use another API key, or create one with a higher `--max-spend`.",
    "tenant": "Raise the tenant's `max_spend` in `tenant_quotas`.",
}


class SpendCapReached(QuireError):
    """A conversation, an API key or a tenant reached its spend cap, or cannot pay the next call's input."""

    def __init__(self, *, spent: float, cap: float, scope: SpendScope = "conversation", estimated: float = 0.0) -> None:
        self.spent, self.cap, self.scope, self.estimated = spent, cap, scope, estimated
        subject = "API key" if scope == "key" else scope
        refusal, remedy = "nothing more is sent", _SPEND_CAP_REMEDIES[scope]
        if estimated:
            refusal = (
                f"{format_usd(cap - spent)} is left, and the input of this call is estimated at "
                f"{format_usd(estimated)}, so it is not sent"
            )
            remedy = f"Send a shorter request. {remedy}"
        super().__init__(
            f"The {subject} has cost {format_usd(spent)}, and its cap is {format_usd(cap)}: {refusal}. {remedy}"
        )


class DailyBudgetReached(SpendCapReached):
    """All calls of the day together have cost the daily budget, and it is set to stop."""

    def __init__(self, *, spent: float, cap: float) -> None:
        super().__init__(spent=spent, cap=cap, scope="tenant")
        self.args = (
            f"Today has cost {format_usd(spent, 2)}, and `daily_budget` is {format_usd(cap, 2)}: nothing more is sent "
            "until midnight UTC. Raise `daily_budget`, or set `daily_budget_stops` to false.",
        )


class UnknownPrice(QuireError):
    """A spend cap applies, but the price of a model is unknown, so that the cap could not hold."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"A spend cap (`max_spend`) applies, but the price of the model {model!r} is unknown: nothing is sent. Set "
            f'`input_price` and `output_price` (0 for a free model) under `[models."{model}"]` in the settings.'
        )


class UnknownStrategy(QuireError):
    """There is no strategy with that name; register it first, or choose a built-in one."""


class IllegalCut(QuireError):
    """A strategy chose a cut that is not one of the legal cuts; correct its `choose_cut`."""


class ImportFailed(QuireError):
    """The file could not be imported; nothing of it was stored."""


PathRefusalReason = Literal["outside", "hidden", "folder", "special", "too_large", "binary", "unreadable"]
"""Why a path is not read."""


class PathRefused(QuireError):
    """The path was not read: it is outside the root or not a text file; use the path of a text file inside.

    `path` is the file's path relative to the root, if there is one.
    """

    def __init__(
        self, message: str | None = None, *, reason: PathRefusalReason = "outside", path: str | None = None
    ) -> None:
        self.reason: PathRefusalReason = reason
        self.path = path
        super().__init__(message)


class UnknownTokenizer(QuireError):
    """There is no such tokenizer; use the name of an encoding, or the path of a Hugging Face tokenizer.json."""


class UnreadableSegment(QuireError):
    """This version of Quire cannot read the recall segment; rebuild it from the log."""


class IntegrityViolation(QuireError):
    """A stored row is not as it was recorded; `quire conversation verify --all` lists all changes."""


class StoreError(QuireError):
    """A database operation failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or the connection broke; whether the last write was committed is unknown."""


class StoreReadOnly(StoreUnavailable):
    """The database accepts no writes: it is a standby, or read-only; nothing was stored. Retry after the fail-over."""


class StoreFull(StoreUnavailable):
    """The disk of the database is full; nothing was stored. Free space, then retry."""


class StoreRolledBack(StoreUnavailable):
    """The database was set back to an earlier state; retry with the whole conversation, which restores it."""


class StoreBusy(StoreError):
    """A lock or a connection of the database did not become free in time; retry."""


class ObjectStorageUnavailable(StoreError):
    """The object storage does not answer; what is stored there can be read once it does. Retry."""


class SchemaOutdated(StoreError):
    """The database schema is not the one that this version of Quire needs; run `quire db upgrade`."""


class ModelError(QuireError):
    """The model call failed. `status` is the HTTP status, if there was one."""

    def __init__(self, message: str | None = None, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelContextOverflow(ModelError):
    """The prompt exceeds the model's context window; compact the conversation, or choose a model with a larger one."""

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        tokens: int | None = None,
        window: int | None = None,
        is_structured: bool = False,
    ) -> None:
        self.tokens, self.window = tokens, window
        self.is_structured = is_structured
        """Whether the counts are fields of the error itself; otherwise its message may repeat what a client sent."""
        super().__init__(message, status=status)


class ModelRateLimited(ModelError):
    """The provider's rate limit was reached; retry after `retry_after` seconds, if it is set."""

    def __init__(
        self, message: str | None = None, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message, status=status)


class ModelRefused(ModelError):
    """The provider's policy forbids the prompt or the answer; change the prompt."""


class ModelRequestRejected(ModelError):
    """The provider rejected the request: its settings, API key or model name; fix what its message names."""


class ModelUnavailable(ModelError):
    """The model cannot be reached, is overloaded, timed out or interrupted its reply; retry later."""


class ModelTimeout(ModelUnavailable):
    """The model's server sent nothing for too long; retry later, or raise `model_timeout`."""


SummaryFailureReason = Literal[
    "timed_out",
    "rate_limited",
    "refused",
    "empty",
    "truncated",
    "too_long",
    "malformed",
    "unavailable",
    "overflow",
    "invalid",
]
"""Why a summary failed."""


class SummaryFailed(QuireError):
    """The summary failed; nothing was changed, and the next fallback can be tried.

    `calls` and the tokens are what the attempt cost.
    """

    def __init__(
        self,
        reason: SummaryFailureReason,
        message: str | None = None,
        *,
        calls: int = 0,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        self.reason: SummaryFailureReason = reason
        self.calls, self.input_tokens, self.output_tokens = calls, input_tokens, output_tokens
        self.detail = message or "Nothing was changed, and the next fallback can be tried."
        super().__init__(f"The summary failed ({reason}): {self.detail}")


class MissingExtra(QuireError):
    """An optional package is not installed."""

    def __init__(self, *, extra: str, feature: str) -> None:
        super().__init__(f'{feature} needs an extra package: pip install "quire[{extra}]"')


def error_detail(error: QuireError) -> str:
    """The message for a caller of a server. A database error has a fixed message, because drivers name host, port
    and role."""
    if isinstance(error, StoreError) and not isinstance(error, SchemaOutdated):
        return inspect.cleandoc(type(error).__doc__ or "")
    return str(error)
