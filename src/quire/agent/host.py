"""What a turn needs of the conversation that it is part of, and of whoever runs tools. `Conversation` is a `Host`."""

from typing import Protocol, TypeVar

from quire.compaction.run import Trigger
from quire.llm import Reply
from quire.model import Entry, Message, ToolCallPart
from quire.view.assemble import Assembly
from quire.view.shapes import Load


class Prepared(Protocol):
    """A request that fits, and how it came about."""

    @property
    def assembly(self) -> Assembly: ...

    @property
    def compacted(self) -> tuple[Entry, ...]:
        """The compactions that preparing it took."""
        ...

    @property
    def load(self) -> Load | None:
        """Finds the blobs that its messages quote."""
        ...


R = TypeVar("R", bound=Prepared)


class Host(Protocol[R]):
    async def prepare(self, message: Message | None = None) -> R:
        """The request that asks `message`, or that goes on from the log as it is."""
        ...

    async def keep(self, request: R) -> tuple[list[Entry], R]:
        """Puts what the request asks into the log, with the documents that it refers to, before it is sent.

        Gives the entries, and the request for which only the reply is recorded any more.
        """
        ...

    async def record(self, response: Reply, *, request: R, unfinished: bool = False) -> Entry:
        """Keeps a reply with the manifest of its request; `unfinished` marks one that was broken off."""
        ...

    async def append(self, *messages: Message) -> list[Entry]: ...

    async def compact(self, *, trigger: Trigger) -> Entry | None:
        """Makes the history shorter than it is; None where nothing can be."""
        ...

    async def run_tool(self, call: ToolCallPart) -> Message:
        """The answer of one of Quire's own tools; for another name, an error that says so."""
        ...


class ToolRunner(Protocol):
    """Runs some of the tools that a model is told of, by the names under which it is told of them."""

    def handles(self, call: ToolCallPart) -> bool: ...

    def needs_approval(self, call: ToolCallPart) -> bool:
        """Whether somebody must allow this call first."""
        ...

    async def run(self, call: ToolCallPart) -> Message:
        """A tool's message with the call's one result. What it raises becomes a result that says so."""
        ...
