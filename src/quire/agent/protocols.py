"""Protocols of the turn loop: its host, the requests it sends, and its tool runners.

The engine's `Conversation` is the host. It is described here because the engine is above this layer.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from quire.compaction.execution import CompactionTrigger
from quire.errors import ModelContextOverflow
from quire.llm import Reply
from quire.model import Entry, Message, ToolCallPart
from quire.model.entry_metadata import DocumentReference
from quire.view.assembly import Assembly
from quire.wire import BlobLoader

if TYPE_CHECKING:
    from quire.model.events import ContextSuggestion


class TurnRequest(Protocol):
    """A prepared request, which fits the context window."""

    @property
    def assembly(self) -> Assembly: ...

    @property
    def compactions(self) -> tuple[Entry, ...]:
        """Compactions made while preparing it."""
        ...

    @property
    def needs_compaction(self) -> bool:
        """Whether the history must be compacted before it is sent, once the question is recorded."""
        ...

    @property
    def load_blob(self) -> BlobLoader | None:
        """Loads the blobs that its messages refer to."""
        ...


RequestT = TypeVar("RequestT", bound=TurnRequest)


class ToolOutcome(NamedTuple):
    """Result of a built-in tool: the message to append, and the documents that the tool read or found."""

    message: Message
    references: tuple[DocumentReference, ...] = ()


class RequestReport(Protocol[RequestT]):
    """What the loop reports about a request, apart from its reply."""

    async def reserve_spend(self, request: RequestT) -> RequestT:
        """Reserves the estimated cost of the request; raises a `QuireError` if a spend cap does not allow it."""
        ...

    async def settle_spend(self, request: RequestT, *, is_billed: bool) -> None:
        """Ends the reservation of a request that has no reply to record."""
        ...

    async def correct_overflow(self, error: ModelContextOverflow, *, request: RequestT) -> bool:
        """Corrects window and calibration by the overflow error of `request`; False if the error is not credible."""
        ...


class QuestionRequests(Protocol[RequestT]):
    """The first request of a turn, whose question is recorded before a compaction."""

    async def build(self, message: Message) -> RequestT:
        """Builds the request for `message`, or one that `needs_compaction`."""
        ...

    async def rebuild(self, request: RequestT) -> RequestT:
        """Compacts the history of a request whose question is recorded, and builds it again."""
        ...


class TurnHost(Protocol[RequestT]):
    """The conversation in which a turn runs."""

    @property
    def turn_requests(self) -> QuestionRequests[RequestT]: ...

    @property
    def recorder(self) -> RequestReport[RequestT]: ...

    async def prepare(self) -> RequestT:
        """Builds the request that continues from the log as it is."""
        ...

    async def record_question(self, request: RequestT) -> tuple[list[Entry], RequestT]:
        """Appends the request's question and its referenced documents to the log before the request is sent.

        Returns the entries, and the request for which only the reply remains to be recorded.
        """
        ...

    async def record(
        self,
        response: Reply,
        *,
        request: RequestT,
        references: Sequence[DocumentReference] = (),
        incomplete: bool = False,
    ) -> Entry:
        """Records a reply with the manifest of its request, and the documents that built-in tools read for it.

        `incomplete` marks an interrupted reply.
        """
        ...

    async def append(self, *messages: Message) -> list[Entry]: ...

    async def cost(self) -> float:
        """Cost of the conversation so far, in US dollars."""
        ...

    async def suggest(self) -> "ContextSuggestion | None":
        """A change of the context that the turn before suggests."""
        ...

    async def compact(self, *, trigger: CompactionTrigger) -> Entry | None:
        """Compacts the history; None if nothing can be compacted."""
        ...

    async def run_tool(self, call: ToolCallPart, *, request: RequestT) -> ToolOutcome:
        """Runs a built-in tool that the reply to `request` called; for an unknown name the result is an error that
        says so."""
        ...


class ToolRunner(Protocol):
    """Runs some of the offered tools, identified by the names that the model sees on the wire."""

    def handles(self, call: ToolCallPart) -> bool: ...

    def needs_approval(self, call: ToolCallPart) -> bool:
        """Whether a person must approve this call before it runs."""
        ...

    async def run(self, call: ToolCallPart) -> Message:
        """Returns a tool message with exactly one result. An exception becomes an error result."""
        ...
