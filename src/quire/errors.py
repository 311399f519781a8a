"""Every error that Quire raises on purpose, as one tree.

QuireError
├── NotFound
│   ├── ConversationNotFound
│   ├── BranchNotFound
│   ├── EntryNotFound
│   ├── BlobNotFound
│   ├── DocumentNotFound
│   ├── MemoryNotFound
│   ├── KeyNotFound
│   └── RequestNotFound
├── Conflict
│   ├── ConversationExists
│   ├── StaleHead
│   ├── StaleCompaction
│   ├── StaleShelf
│   ├── MemoryRetired
│   └── TurnUnderWay
├── AccessDenied
│   ├── InvalidKey
│   ├── KeyScopeMissing
│   └── ForeignRequest
├── TooManyRequests
├── RequestTooLarge
├── RequestTooSlow
├── InvalidEntry
├── InvalidRequest
├── InvalidConfiguration
├── ContextOverflow
├── SpendCapReached
├── UnknownStrategy
├── ImportFailed
├── PathRefused
├── UnknownTokenizer
├── UnreadableSegment
├── StoreError
│   ├── StoreUnavailable
│   ├── StoreBusy
│   └── SchemaOutdated
├── ModelError
│   ├── ModelOverflow
│   ├── ModelThrottled
│   ├── ModelRefused
│   ├── ModelInvalid
│   └── ModelUnavailable
│       └── ModelSilent
├── SummaryFailed
└── MissingExtra

A class's docstring is its default message; the message says what happened, to which item, and what to do next.
"""

import inspect
from collections.abc import Sequence
from typing import Literal


class QuireError(Exception):
    """Something went wrong in Quire."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class NotFound(QuireError):
    """No such item."""


class ConversationNotFound(NotFound):
    """There is no such conversation for this tenant; create it first, or check the tenant."""


class BranchNotFound(NotFound):
    """The conversation has no such branch; list its branches to see which there are."""


class EntryNotFound(NotFound):
    """The branch has no entry with that number; numbers run from 1 to the branch's head."""


class BlobNotFound(NotFound):
    """No blob with that digest is stored for this tenant."""


class DocumentNotFound(NotFound):
    """There is no such file in the vault or the project; check the path, which starts at its root."""


class MemoryNotFound(NotFound):
    """No memory with that id is stored for this tenant; list the agent's memories to see which there are."""


class KeyNotFound(NotFound):
    """This tenant has no key with that id; `quire key list` shows which it has."""


class RequestNotFound(NotFound):
    """No request with that id is filed for this tenant; only those that were answered are."""


class Conflict(QuireError):
    """Someone else was quicker; read the current state and decide again."""


class ConversationExists(Conflict):
    """A conversation with that id is stored already; choose another id, or purge the stored one."""


class StaleHead(Conflict):
    """The branch has moved on since it was read; append after its present head, or fork at the old one."""


class StaleCompaction(Conflict):
    """Another compaction or undo came first; plan again from the branch's present state."""


class StaleShelf(Conflict):
    """The shelf is not of the messages as they are now; list the shelves again, and make anew what is missing."""


class MemoryRetired(Conflict):
    """The memory was retired already; correct the one that replaced it, or add a new one."""


class TurnUnderWay(Conflict):
    """The branch is being answered; wait for the end of that turn, or stop it."""


class AccessDenied(QuireError):
    """Whoever asks may not have this."""


class InvalidKey(AccessDenied):
    """No key that is valid came with the request; send one as `Authorization: Bearer quire_…`."""


class KeyScopeMissing(AccessDenied):
    """The key does not reach this far; use one that was made with the scope that it takes."""


class ForeignRequest(AccessDenied):
    """The request comes from another site, or asks for another host; open the page at the address of this server."""


class TooManyRequests(QuireError):
    """The key has asked as often as it may for now; ask again after `retry_after` seconds."""

    def __init__(self, message: str | None = None, *, retry_after: int = 1) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class RequestTooLarge(QuireError):
    """The request's body is larger than the server reads; send less at once, or raise `max_request_bytes`."""


class RequestTooSlow(QuireError):
    """The request's body took too long to arrive; send it again over a quicker connection."""


class InvalidEntry(QuireError):
    """The entry does not fit the place that it was written for."""


class InvalidRequest(QuireError):
    """There is no valid request to make of this; the message says why."""


class InvalidConfiguration(QuireError):
    """A file or value that configures Quire cannot be used; mend the field that the message names."""


class ContextOverflow(QuireError):
    """What cannot be reduced exceeds the window."""

    def __init__(self, *, needed: int, room: int, largest: Sequence[tuple[str, int]]) -> None:
        self.needed, self.room, self.largest = needed, room, tuple(largest)
        named = ", ".join(f"{name} ({tokens:,} tokens)" for name, tokens in largest)
        super().__init__(
            f"The request needs {needed:,} tokens and there is room for {room:,}. The largest items: {named}. "
            "Shorten or remove one of them, or choose a model with a larger window."
        )


class SpendCapReached(QuireError):
    """The conversation has cost as much as it may."""

    def __init__(self, *, spent: float, cap: float) -> None:
        self.spent, self.cap = spent, cap
        super().__init__(
            f"The conversation has cost ${spent:.4f}, and its cap is ${cap:.4f}: nothing more is sent. "
            "Raise `max_spend`, or start another conversation."
        )


class UnknownStrategy(QuireError):
    """There is no strategy with that name."""


class ImportFailed(QuireError):
    """The file could not be imported; nothing of it was kept."""


Refusal = Literal["outside", "hidden", "folder", "special", "too_large", "binary", "unreadable"]
"""Why a path that somebody named is not read."""


class PathRefused(QuireError):
    """The path is not read: it leaves its root, or names no text file; name a text file inside.

    `path` is where the file stands under the root, where there is one.
    """

    def __init__(self, message: str | None = None, *, reason: Refusal = "outside", path: str | None = None) -> None:
        self.reason: Refusal = reason
        self.path = path
        super().__init__(message)


class UnknownTokenizer(QuireError):
    """There is no tokenizer of that name; name a vocabulary, or the path of a Hugging Face tokenizer.json."""


class UnreadableSegment(QuireError):
    """The bytes are no segment of the recall index that this version of Quire reads; build it anew from the log."""


class StoreError(QuireError):
    """The database could not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or the connection broke; whether the last write was kept is unknown."""


class StoreBusy(StoreError):
    """The database stayed locked for longer than the busy timeout; repeat the call, or raise the timeout."""


class SchemaOutdated(StoreError):
    """The database's schema is not the one that this version of Quire needs; run `quire db upgrade`."""


class ModelError(QuireError):
    """The model did not answer. `status` is the HTTP status, where there was one."""

    def __init__(self, message: str | None = None, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelOverflow(ModelError):
    """The prompt exceeds the model's window; compact the conversation, or choose a model with a larger one."""

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        tokens: int | None = None,
        window: int | None = None,
    ) -> None:
        self.tokens, self.window = tokens, window
        super().__init__(message, status=status)


class ModelThrottled(ModelError):
    """The provider asks to wait; repeat the call after `retry_after` seconds, where it says how many."""

    def __init__(
        self, message: str | None = None, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message, status=status)


class ModelRefused(ModelError):
    """The provider's policy forbids the prompt or the answer; change what is asked."""


class ModelInvalid(ModelError):
    """The provider rejects the request as it is: its settings, its key, its model's name; mend what it names."""


class ModelUnavailable(ModelError):
    """The model cannot be reached, is overloaded, broke off or took too long; repeat the call later."""


class ModelSilent(ModelUnavailable):
    """The model's server said nothing for too long; repeat the call later, or raise `upstream_timeout`."""


SummaryFault = Literal[
    "timed_out",
    "throttled",
    "refused",
    "empty",
    "truncated",
    "too_long",
    "garbage",
    "unavailable",
    "overflow",
    "invalid",
]
"""Why there is no summary."""


class SummaryFailed(QuireError):
    """The summary could not be made; nothing was changed, and the next rung of the ladder can be taken.

    `calls` and the tokens are what the attempt cost all the same.
    """

    def __init__(
        self,
        reason: SummaryFault,
        message: str | None = None,
        *,
        calls: int = 0,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        self.reason: SummaryFault = reason
        self.calls, self.input_tokens, self.output_tokens = calls, input_tokens, output_tokens
        self.detail = message or "Nothing was changed, and the next rung of the ladder can be taken."
        super().__init__(f"There is no summary ({reason}): {self.detail}")


class MissingExtra(QuireError):
    """A package that this needs is not installed."""

    def __init__(self, *, extra: str, needed_for: str) -> None:
        super().__init__(f'{needed_for} needs an extra package: pip install "quire[{extra}]"')
