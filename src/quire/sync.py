"""The blocking face: the same names, for programs without an event loop. It holds no logic of its own.

An event loop runs in a thread of its own while the engine is open; each call waits for its answer there.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from quire import engine as asynchronous
from quire.compaction.run import Summarizer, Trigger
from quire.context.items import InSession
from quire.context.vault import Vault
from quire.engine import Document, Request
from quire.engine.vault_index import Progress
from quire.ledger import Change, Replay
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.log import DEFAULT_TENANT, MAIN
from quire.model import ContextItem, Decision, Entry, Manifest, Message, ToolCallPart, ToolDefinition
from quire.model.agents import Agent
from quire.model.events import Event
from quire.settings import Settings
from quire.view.budget import UsageReport
from quire.view.plans import Plan

T = TypeVar("T")


class _Loop:
    """An event loop in a thread, and a way to wait for what runs on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="quire-sync", daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def open(  # noqa: A001 (quire.sync.open is the front door)
    url: str = "sqlite:///quire.db",
    *,
    tenant: str = DEFAULT_TENANT,
    settings: Settings | None = None,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    agent: Agent | Path | str | None = None,
    vault: Vault | Path | str | None = None,
    summarizer: Model | Summarizer | None = None,
    embedder: Embedder | None = None,
    **changes: Any,
) -> Generator["Engine"]:
    """Opens the log at `url`, as `quire.open` does."""
    loop = _Loop()
    opened = asynchronous.open_engine(
        url,
        tenant=tenant,
        settings=settings,
        instructions=instructions,
        tools=tools,
        agent=agent,
        vault=vault,
        summarizer=summarizer,
        embedder=embedder,
        **changes,
    )
    try:
        yield Engine(loop, loop.wait(opened.__aenter__()))
    finally:
        loop.wait(opened.__aexit__(None, None, None))
        loop.stop()


class Engine:
    def __init__(self, loop: _Loop, engine: asynchronous.Engine) -> None:
        self._loop, self._engine = loop, engine

    def use(self, **changes: Any) -> None:
        self._engine.use(**changes)

    def like(self, *, agent: Agent | None = None, **changes: Any) -> "Engine":
        """An engine for the same log with another agent or other settings; what it learns and keeps is shared."""
        return Engine(self._loop, self._engine.like(agent=agent, **changes))

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Calls `listener` with every event, on the engine's own thread."""
        self._engine.subscribe(listener)

    def index_vault(self) -> Generator[Progress]:
        """Brings the search index up to date with the vault, and says after every note how far it is."""
        steps = self._engine.index_vault()
        while (progress := self._loop.wait(_next(steps))) is not None:
            yield progress

    def conversation(self, id: str | None = None, *, branch: int = MAIN) -> "Conversation":
        return Conversation(self._loop, self._loop.wait(self._engine.conversation(id, branch=branch)))


async def _next(steps: AsyncGenerator[T]) -> T | None:
    return await anext(steps, None)


class Conversation:
    def __init__(self, loop: _Loop, conversation: asynchronous.Conversation) -> None:
        self._loop, self._conversation = loop, conversation

    @property
    def id(self) -> str:
        return self._conversation.id

    @property
    def branch(self) -> int:
        return self._conversation.branch

    def append(self, *messages: Message | str, after: bytes | None = None) -> list[Entry]:
        return self._loop.wait(self._conversation.append(*messages, after=after))

    def prepare(
        self, message: Message | str | Sequence[Message | str] | None = None, *, documents: Sequence[Document] = ()
    ) -> Request:
        return self._loop.wait(self._conversation.prepare(message, documents=documents))

    def record(self, response: object, *, request: Request | None = None, unfinished: bool = False) -> Entry:
        return self._loop.wait(self._conversation.record(response, request=request, unfinished=unfinished))

    def keep(self, request: Request | None = None) -> tuple[list[Entry], Request]:
        return self._loop.wait(self._conversation.keep(request))

    def plan(self) -> Plan | None:
        return self._loop.wait(self._conversation.plan())

    def compact(self, *, instructions: str | None = None, trigger: Trigger = "manual") -> Entry | None:
        return self._loop.wait(self._conversation.compact(instructions=instructions, trigger=trigger))

    def compact_if_due(self) -> Entry | None:
        return self._loop.wait(self._conversation.compact_if_due())

    def undo(self) -> Entry:
        return self._loop.wait(self._conversation.undo())

    def edit_summary(self, text: str) -> Entry:
        return self._loop.wait(self._conversation.edit_summary(text))

    def usage(self) -> UsageReport:
        return self._loop.wait(self._conversation.usage())

    def items(self) -> list[InSession]:
        return self._loop.wait(self._conversation.items())

    def add(self, item: ContextItem | str) -> ContextItem:
        return self._loop.wait(self._conversation.add(item))

    def remove(self, item: ContextItem | str) -> ContextItem:
        return self._loop.wait(self._conversation.remove(item))

    def run_tool(self, call: ToolCallPart) -> Message:
        return self._loop.wait(self._conversation.run_tool(call))

    def preview(self, message: Message | str = "") -> Manifest:
        return self._loop.wait(self._conversation.preview(message))

    def pin(self, number: int) -> None:
        self._loop.wait(self._conversation.pin(number))

    def unpin(self, number: int) -> None:
        self._loop.wait(self._conversation.unpin(number))

    def fork(self, at: int, *, name: str | None = None) -> "Conversation":
        return Conversation(self._loop, self._loop.wait(self._conversation.fork(at, name=name)))

    def messages(self) -> list[Entry]:
        return self._loop.wait(self._conversation.messages())

    def manifest(self, reply: int) -> Manifest:
        return self._loop.wait(self._conversation.manifest(reply))

    def replay(self, reply: int) -> Replay:
        return self._loop.wait(self._conversation.replay(reply))

    def diff(self, reply: int, other: int) -> list[Change]:
        return self._loop.wait(self._conversation.diff(reply, other))

    def why(self, item: int | str, *, reply: int) -> Decision:
        return self._loop.wait(self._conversation.why(item, reply=reply))
