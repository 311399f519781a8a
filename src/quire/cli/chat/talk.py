"""A conversation under way, and all that its turns need: engine, model, tools, leave to run them.

Opened from a command's options, for `quire chat` and `quire ask` alike. A model is made when something is first sent,
so that everything else works without one.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quire.agent.approvals import Approvals, Ask
from quire.agent.loop import turn
from quire.agent.turn_limits import TurnLimits, turn_limits
from quire.cli.agents import agent_file
from quire.cli.chat.marker import Archived, archived
from quire.cli.chat.meter import Reading
from quire.cli.opening import Options, as_options, model_from, opened
from quire.cli.running import MAIN
from quire.cli.servers import started
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

_KEY = re.compile(r"\b[A-Z][A-Z0-9]*_(?:[A-Z]+_)*(?:KEY|TOKEN)\b")

MakeModel = Callable[["Settings"], "Model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which conversation, and how."""

    conversation: str | None = None
    new: bool = False
    resume: bool = False
    """Without an id: go on with the one that was used last, rather than begin another."""
    reply_tokens: int | None = None
    asks: bool = False
    """A question follows at once: where no model can be asked, no conversation is begun."""


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
        model: "Model | None" = None,
    ) -> None:
        self.engine, self.conversation = engine, conversation
        self.troubles = troubles
        self._runners, self._limits = runners, limits
        self._approvals = approvals or Approvals()
        self._make_model = make_model
        self._model = model

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
            self._model = _made(self.engine.settings, self._make_model)
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


def _made(settings: "Settings", make_model: MakeModel) -> "Model":
    try:
        return make_model(settings)
    except ModelInvalid as error:
        raise ModelInvalid(
            f"{settings.model} cannot be asked: {_reason(error)}. Set its provider's key in the environment, or choose "
            "another model; `quire init` looks for keys and local servers."
        ) from error


def _reason(error: ModelInvalid) -> str:
    """What is amiss; of a missing key no more than its name, for the rest is about programs."""
    key = _KEY.search(str(error))
    return f"{key[0]} is not set" if key is not None else str(error).partition(". ")[0].rstrip(".")


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
        model = await asyncio.to_thread(_made, engine.settings, make_model) if wanted.asks else None
        # Before a conversation begins, so that it begins with their tools.
        runners, troubles = await started(engine, stack)
        yield Talk(
            engine,
            await find_conversation(engine, wanted),
            runners=runners,
            troubles=troubles,
            approvals=Approvals(ask),
            limits=turn_limits(engine.settings, reply_tokens=wanted.reply_tokens),
            make_model=make_model,
            model=model,
        )


async def find_conversation(engine: "Engine", wanted: Wanted) -> "Conversation":
    """The one that is named, made if there is none; the one that was used last; or a new one."""
    from quire.engine import Conversation

    if wanted.conversation is not None:
        return await engine.conversation(
            wanted.conversation, branch=await _branch_used_last(engine, wanted.conversation)
        )
    used_last = await engine.store.conversations(limit=1) if wanted.resume and not wanted.new else []
    if not used_last:
        return await engine.conversation()
    named = used_last[0].id
    return Conversation(engine, named, await _branch_used_last(engine, named))


async def _branch_used_last(engine: "Engine", conversation: str) -> int:
    try:
        known = await engine.store.branches(conversation)
    except ConversationNotFound:
        return MAIN
    return max(known, key=lambda branch: (branch.used_at, branch.number)).number
