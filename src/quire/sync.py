"""The synchronous API: blocking wrappers with the same methods, for programs without an event loop.

While the engine is open, an event loop runs in its own thread. Each call runs there and waits for the result.
"""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quire import engine as asynchronous
from quire.agent.approvals import ApprovalFunction
from quire.agent.function_tools import FunctionTool
from quire.agent.protocols import ToolOutcome
from quire.compaction.execution import CompactionTrigger
from quire.compaction.summarizer import Summarizer
from quire.concurrency.event_loop_thread import EventLoopThread, enter_on_thread
from quire.context.items import ResolvedSessionItem
from quire.context.vault import Vault
from quire.engine import Document, Request
from quire.engine.agent_loop import TurnResult
from quire.engine.message_input import MessageInput
from quire.engine.search import EVERY_MESSAGE, MessageFilter, MessageSearchResult
from quire.engine.vault_index import IndexProgress
from quire.errors import InvalidRequest
from quire.ledger import ManifestChange, Replay
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.llm.protocol import ModelBuilder
from quire.log import MAIN_BRANCH
from quire.model import ContextItem, Decision, Entry, Manifest, ToolCallPart, ToolDefinition, Topic
from quire.model.agents import Agent
from quire.model.context_events import ContextEvent
from quire.model.entry_metadata import DocumentReference
from quire.model.events import ContextSuggestion, TurnEvent
from quire.settings import Settings
from quire.store import DEFAULT_TENANT
from quire.view.budget import UsageReport
from quire.view.compaction_plan import CompactionPlan

if TYPE_CHECKING:
    from quire.ledger.cache_history import CacheReport
    from quire.search.catalog import SearchOrder

T = TypeVar("T")


@contextmanager
def open(  # noqa: A001 (quire.sync.open is the entry point)
    url: str = "sqlite:///quire.db",
    *,
    tenant: str = DEFAULT_TENANT,
    settings: Settings | None = None,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    agent: Agent | Path | str | None = None,
    vault: Vault | Path | str | None = None,
    summarizer: Model | Summarizer | ModelBuilder | str | None = None,
    embedder: Embedder | None = None,
    environ: Mapping[str, str] | None = None,
    **changes: Any,
) -> Generator["SyncEngine"]:
    """Opens the log at `url`, with the arguments of `quire.open`."""
    context = asynchronous.open_engine(
        url,
        tenant=tenant,
        settings=settings,
        instructions=instructions,
        tools=tools,
        agent=agent,
        vault=vault,
        summarizer=summarizer,
        embedder=embedder,
        environ=environ,
        **changes,
    )
    with enter_on_thread(context) as (loop, engine):
        yield SyncEngine(loop, engine)


class SyncEngine:
    """Blocking version of `quire.Engine`."""

    def __init__(self, loop: EventLoopThread, engine: asynchronous.Engine) -> None:
        self._loop, self._engine = loop, engine

    def with_changes(self, **changes: Any) -> "SyncEngine":
        """A variant with another `agent`, `vault`, `summarizer`, `embedder` or `clock`, or other settings, by name."""
        return SyncEngine(self._loop, self._engine.with_changes(**changes))

    def subscribe(self, listener: "Callable[[ContextEvent], None]") -> None:
        """Calls `listener` with every event, on the event loop's thread."""
        self._engine.subscribe(listener)

    def wait_for_background(self) -> None:
        """Waits for the background jobs of this engine and its variants, and raises the first unexpected error."""
        self._loop.run(self._engine.wait_for_background())

    def search(
        self,
        query: str,
        *,
        where: MessageFilter = EVERY_MESSAGE,
        order: "SearchOrder" = "relevance",
        min_score: float = 0.0,
        limit: int = 20,
    ) -> MessageSearchResult:
        """Searches the messages of all conversations, archived or not, by words and, with an embedder, by meaning."""
        return self._loop.run(self._engine.search(query, where=where, order=order, min_score=min_score, limit=limit))

    def index_vault(self) -> Generator[IndexProgress]:
        """Updates the search index of the vault, and yields the progress after every note."""
        steps = self._engine.index_vault()
        while (progress := self._loop.run(_next(steps))) is not None:
            yield progress

    def conversation(self, id: str | None = None, *, branch: int = MAIN_BRANCH) -> "SyncConversation":
        return SyncConversation(self._loop, self._loop.run(self._engine.conversation(id, branch=branch)))


async def _next(steps: AsyncGenerator[T]) -> T | None:
    return await anext(steps, None)


class SyncConversation:
    """Blocking version of `quire.Conversation`, for one thread.

    It remembers the request that was prepared last, and the documents that built-in tools have read since the last
    reply; `record` and `run_tool` use them.
    """

    def __init__(self, loop: EventLoopThread, conversation: asynchronous.Conversation) -> None:
        self._loop, self._conversation = loop, conversation
        self._request: Request | None = None
        self._references: list[DocumentReference] = []

    @property
    def id(self) -> str:
        return self._conversation.id

    @property
    def branch(self) -> int:
        return self._conversation.branch

    def send(
        self,
        message: MessageInput | None = None,
        *,
        tools: "Sequence[FunctionTool | Callable[..., Any]]" = (),
        approve: "ApprovalFunction | None" = None,
        max_steps: int | None = None,
        max_cost: float | None = None,
        model: Model | None = None,
    ) -> TurnResult:
        """Runs a turn to its answer, as `quire.Conversation.send` does. Ctrl-C stops it. What has arrived of the reply
        is recorded."""
        return self._loop.run(
            self._conversation.send(
                message, tools=tools, approve=approve, max_steps=max_steps, max_cost=max_cost, model=model
            )
        )

    def stream(
        self,
        message: MessageInput | None = None,
        *,
        tools: "Sequence[FunctionTool | Callable[..., Any]]" = (),
        approve: "ApprovalFunction | None" = None,
        max_steps: int | None = None,
        max_cost: float | None = None,
        model: Model | None = None,
    ) -> Generator[TurnEvent]:
        """Runs a turn like `send`, and yields its events. Closing the generator stops the turn."""
        events = self._conversation.stream(
            message, tools=tools, approve=approve, max_steps=max_steps, max_cost=max_cost, model=model
        )
        try:
            while (event := self._loop.run(_next(events))) is not None:
                yield event
        finally:
            self._loop.run(events.aclose())

    def search(
        self,
        query: str,
        *,
        where: MessageFilter = EVERY_MESSAGE,
        order: "SearchOrder" = "relevance",
        min_score: float = 0.0,
        limit: int = 20,
    ) -> MessageSearchResult:
        """Searches the messages of this conversation, archived or not, on all its branches."""
        return self._loop.run(
            self._conversation.search(query, where=where, order=order, min_score=min_score, limit=limit)
        )

    def list_topics(self, seq: int) -> list[Topic]:
        return self._loop.run(self._conversation.list_topics(seq))

    def cost(self) -> float:
        return self._loop.run(self._conversation.cost())

    def append(self, *messages: MessageInput, after: bytes | None = None) -> list[Entry]:
        return self._loop.run(self._conversation.append(*messages, after=after))

    def prepare(
        self, message: MessageInput | Sequence[MessageInput] | None = None, *, documents: Sequence[Document] = ()
    ) -> Request:
        self._request = self._loop.run(self._conversation.prepare(message, documents=documents))
        return self._request

    def record(
        self,
        response: object,
        *,
        request: Request | None = None,
        references: Sequence[DocumentReference] = (),
        incomplete: bool = False,
    ) -> Entry:
        """Stores the reply to `request`, by default the last prepared one, with its question and its manifest."""
        prepared, read = request or self._last_request(), [*self._references, *references]
        entry = self._loop.run(
            self._conversation.record(response, request=prepared, references=read, incomplete=incomplete)
        )
        self._references.clear()
        return entry

    def record_question(self, request: Request | None = None) -> tuple[list[Entry], Request]:
        entries, self._request = self._loop.run(self._conversation.record_question(request or self._last_request()))
        return entries, self._request

    def _last_request(self) -> Request:
        if self._request is None:
            raise InvalidRequest("No request was prepared in this conversation; call `prepare` first.")
        return self._request

    def plan_compaction(self) -> CompactionPlan | None:
        return self._loop.run(self._conversation.plan_compaction())

    def compact(self, *, instructions: str | None = None, trigger: CompactionTrigger = "manual") -> Entry | None:
        return self._loop.run(self._conversation.compact(instructions=instructions, trigger=trigger))

    def undo_compaction(self) -> Entry:
        return self._loop.run(self._conversation.undo_compaction())

    def redo_compaction(self) -> Entry:
        return self._loop.run(self._conversation.redo_compaction())

    def edit_summary(self, text: str) -> Entry:
        return self._loop.run(self._conversation.edit_summary(text))

    def usage(self) -> UsageReport:
        return self._loop.run(self._conversation.usage())

    def items(self) -> list[ResolvedSessionItem]:
        return self._loop.run(self._conversation.items())

    def add_item(self, item: ContextItem | str) -> ContextItem:
        return self._loop.run(self._conversation.add_item(item))

    def remove_item(self, item: ContextItem | str) -> ContextItem:
        return self._loop.run(self._conversation.remove_item(item))

    def run_tool(self, call: ToolCallPart, *, request: Request | None = None) -> ToolOutcome:
        """Runs a built-in tool. The documents that it read are recorded with the next reply."""
        outcome = self._loop.run(self._conversation.run_tool(call, request=request or self._last_request()))
        self._references.extend(outcome.references)
        return outcome

    def preview(self, message: MessageInput = "") -> Manifest:
        return self._loop.run(self._conversation.preview(message))

    def drop(self, seq: int, *, reason: str | None = None, now: bool = False) -> None:
        self._loop.run(self._conversation.drop(seq, reason=reason, now=now))

    def restore(self, seq: int, *, now: bool = False) -> None:
        self._loop.run(self._conversation.restore(seq, now=now))

    def pin(self, seq: int) -> None:
        self._loop.run(self._conversation.pin(seq))

    def unpin(self, seq: int) -> None:
        self._loop.run(self._conversation.unpin(seq))

    def set_priority(self, seq: int, priority: int | None) -> None:
        self._loop.run(self._conversation.set_priority(seq, priority))

    def suggest(self) -> ContextSuggestion | None:
        return self._loop.run(self._conversation.suggest())

    def fork(self, seq: int, *, name: str | None = None) -> "SyncConversation":
        return SyncConversation(self._loop, self._loop.run(self._conversation.fork(seq, name=name)))

    def messages(self) -> list[Entry]:
        return self._loop.run(self._conversation.messages())

    def manifest(self, reply_seq: int) -> Manifest:
        return self._loop.run(self._conversation.manifest(reply_seq))

    def replay(self, reply_seq: int) -> Replay:
        return self._loop.run(self._conversation.replay(reply_seq))

    def diff(self, reply_seq: int, other_seq: int) -> list[ManifestChange]:
        return self._loop.run(self._conversation.diff(reply_seq, other_seq))

    def cache_breaks(self, reply_seq: int | None = None) -> "CacheReport":
        return self._loop.run(self._conversation.cache_breaks(reply_seq))

    def why(self, item: int | str, *, reply_seq: int) -> Decision:
        return self._loop.run(self._conversation.why(item, reply_seq=reply_seq))
