"""A conversation under way, and all that its turns need: engine, model, tools, leave to run them.

Opened from a command's options, for `quire chat` and `quire ask` alike. A model is made when something is first sent,
so that everything else works without one.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quire.agent.approvals import Approvals, Ask
from quire.agent.loop import turn
from quire.agent.turn_limits import TurnLimits
from quire.cli.agents import agent_file
from quire.cli.chat.marker import Archived, archived
from quire.cli.chat.meter import Reading
from quire.cli.opening import Options, as_options, model_from, opened
from quire.errors import ConversationNotFound, ModelInvalid
from quire.model.turns import TurnEvent
from quire.settings.sources import option_layer

if TYPE_CHECKING:
    from quire.agent.host import ToolRunner
    from quire.agent.mcp import Trouble
    from quire.engine import Conversation, Engine
    from quire.llm import Model
    from quire.model import Entry, Usage
    from quire.settings import Settings

NEWEST = 20
"""Among so many conversations, the newest ones, the one that was used last is looked for."""

MakeModel = Callable[["Settings"], "Model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which conversation, and how."""

    conversation: str | None = None
    new: bool = False
    resume: bool = False
    """Without an id: go on with the one that was used last, rather than begin another."""
    reply_tokens: int | None = None


def options_from(pairs: Iterable[str], *, agent: str | None = None, vault: Path | None = None) -> Options:
    """`--agent` and `--vault` are settings that have an option of their own."""
    own = [f"agent={agent_file(agent, os.environ)}"] if agent is not None else []
    own += [f"vault={vault}"] if vault is not None else []
    return as_options([*pairs, *own])


class Talk:
    def __init__(
        self,
        engine: "Engine",
        conversation: "Conversation",
        *,
        runners: "Sequence[ToolRunner]" = (),
        troubles: "Sequence[Trouble]" = (),
        approvals: Approvals | None = None,
        limits: TurnLimits | None = None,
        make_model: MakeModel = model_from,
    ) -> None:
        self.engine, self.conversation = engine, conversation
        self.troubles = troubles
        self._runners, self._limits = runners, limits
        self._approvals = approvals or Approvals()
        self._make_model = make_model
        self._model: Model | None = None

    async def turn(self, text: str | None, *, stop: asyncio.Event | None = None) -> AsyncGenerator[TurnEvent, None]:
        """Asks `text`, or asks again for a reply to what stands last."""
        # Loading a provider's client takes a second or two.
        model = await asyncio.to_thread(lambda: self.model)
        events = turn(
            self.conversation,
            text,
            model=model,
            runners=self._runners,
            approvals=self._approvals,
            limits=self._limits,
            stop=stop,
        )
        async with aclosing(events):
            async for event in events:
                yield event

    @property
    def model(self) -> "Model":
        """The model that answers; an error says what to do where there is none."""
        if self._model is None:
            settings = self.engine.settings
            try:
                self._model = self._make_model(settings)
            except ModelInvalid as error:
                reason = str(error).partition(". ")[0].rstrip(".")
                raise ModelInvalid(
                    f"{settings.model} cannot be asked: {reason}. Set its provider's key in the environment, or choose "
                    "another model; `quire init` looks for keys and local servers."
                ) from error
        return self._model

    def use_model(self, name: str) -> None:
        """From the next request on. If it cannot be asked, everything stays as it was."""
        before, model = self.engine.settings.model, self._model
        self.engine.use(model=name)
        self._model = None
        try:
            _ = self.model
        except ModelInvalid:
            self.engine.use(model=before)
            self._model = model
            raise

    async def reading(self, *, number: int | None = None, usage: "Usage | None" = None) -> Reading:
        engine = self.engine
        return Reading(
            report=await self.conversation.usage(),
            number=number,
            usage=usage,
            cost=engine.cost(usage, engine.settings.model),
            spent=await engine.store.spent(self.conversation.id),
        )

    async def archived(self, entry: "Entry") -> Archived:
        return await archived(self.engine.store, entry)


@asynccontextmanager
async def opened_talk(
    options: Options, wanted: Wanted, *, ask: Ask | None = None, make_model: MakeModel = model_from
) -> AsyncGenerator[Talk]:
    """`ask` is asked before a tool of a server is run; without it none is."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(opened(options))
        if options.given:
            # What is asked for by an option goes before what the agent's file says.
            engine.use(**option_layer(options.given).values)
        runners, troubles = await _served(engine, stack)
        yield Talk(
            engine,
            await find_conversation(engine, wanted),
            runners=runners,
            troubles=troubles,
            approvals=Approvals(ask),
            limits=TurnLimits(reply_tokens=wanted.reply_tokens),
            make_model=make_model,
        )


async def _served(engine: "Engine", stack: AsyncExitStack) -> "tuple[list[ToolRunner], Sequence[Trouble]]":
    """The tools of the agent's servers, offered before a conversation begins, so that it begins with them."""
    if not any(server.enabled for server in engine.agent.servers):
        return [], ()
    from quire.agent.mcp import Servers
    from quire.agent.runners import ServerRunner

    keep = engine.store.put_blob
    servers = await stack.enter_async_context(Servers(engine.agent.servers, variables=os.environ, keep=keep))
    offered = await servers.tools()
    engine.agent = engine.agent.offering(*engine.agent.tools, *offered)
    return [ServerRunner(servers, offered)], servers.troubles


async def find_conversation(engine: "Engine", wanted: Wanted) -> "Conversation":
    """The one that is named, made if there is none; the one that was used last; or a new one."""
    from quire.engine import Conversation

    if wanted.conversation is not None:
        branch = await _last_branch(engine, wanted.conversation)
        return await engine.conversation(wanted.conversation, branch=branch or 0)
    if wanted.new or not wanted.resume:
        return await engine.conversation()
    known = await engine.store.conversations(limit=NEWEST)
    used = [(await _last_used(engine, each.id), each.id) for each in known]
    if not used:
        return await engine.conversation()
    (_, branch), last = max(used)
    return Conversation(engine, last, branch)


async def _last_branch(engine: "Engine", conversation: str) -> int | None:
    try:
        return (await _last_used(engine, conversation))[1]
    except ConversationNotFound:
        return None


async def _last_used(engine: "Engine", conversation: str) -> tuple[int, int]:
    """When something was last put into it, and into which branch."""
    used: list[tuple[int, int]] = []
    for branch in await engine.store.branches(conversation):
        newest = await engine.store.tail(conversation, 1, branch=branch.number)
        # A branch that holds nothing of its own yet was used when it was made.
        used.append((max(branch.created_at, newest[0].at if newest else 0), branch.number))
    return max(used, default=(0, 0))
