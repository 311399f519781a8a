"""Runtime of a chat: the conversation with its engine, model, tools and approvals.

`quire chat` and `quire ask` open it from a command's options. The model is created when the first message is sent, so
that everything else works without one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quire.agent.approvals import ApprovalCallback, Approvals
from quire.agent.limits import TurnLimits, build_turn_limits
from quire.agent.turn import run_turn
from quire.cli.chat.renderables import CompactionStats, MeterReading, load_compaction_stats
from quire.cli.common import MAIN_BRANCH
from quire.cli.engine_setup import SettingOverrides, build_model, open_engine_from_settings, to_overrides
from quire.cli.mcp_servers import start_servers
from quire.cli.paths import find_agent_file
from quire.engine import Conversation
from quire.errors import ConversationNotFound, ModelRequestRejected
from quire.llm.error_mapping import explain_unusable_model
from quire.model.events import TurnEvent

if TYPE_CHECKING:
    from quire.agent.mcp.servers import ServerProblem
    from quire.agent.protocols import ToolRunner
    from quire.engine import Engine
    from quire.llm import Model
    from quire.model import Entry, Message, Usage
    from quire.settings import Settings


ModelFactory = Callable[["Settings"], "Model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Which conversation to open, and how."""

    conversation: str | None = None
    new: bool = False
    resume: bool = False
    """Without an id: resume the most recently used conversation instead of creating one."""
    reply_tokens: int | None = None
    requires_model: bool = False
    """A question follows at once: without a usable model, no conversation is created."""


def build_overrides(pairs: Iterable[str], *, agent: str | None = None, vault: Path | None = None) -> SettingOverrides:
    """Combines `--set` with `--agent` and `--vault`, which are settings with their own options."""
    extra = [f"agent={find_agent_file(agent)}"] if agent is not None else []
    extra += [f"vault={vault}"] if vault is not None else []
    return to_overrides([*pairs, *extra])


class ChatRuntime:
    def __init__(
        self,
        engine: "Engine",
        conversation: Conversation,
        *,
        runners: "Sequence[ToolRunner]" = (),
        server_problems: "Sequence[ServerProblem]" = (),
        approvals: Approvals | None = None,
        limits: TurnLimits | None = None,
        make_model: ModelFactory = build_model,
        model: "Model | None" = None,
    ) -> None:
        self.engine, self.conversation = engine, conversation
        self.server_problems = server_problems
        self._runners, self._limits = runners, limits
        self._approvals = approvals or Approvals()
        self._make_model = make_model
        self._model = model

    async def run_turn(
        self, question: "Message | str | None", *, stop: asyncio.Event | None = None
    ) -> AsyncGenerator[TurnEvent, None]:
        """Runs a turn with this question, or with None retries the last one."""
        # Loading a provider's client takes a second or two.
        model = await asyncio.to_thread(lambda: self.model)
        events = run_turn(
            self.conversation,
            question,
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
        """The model that answers; raises `ModelRequestRejected` with advice if it is unusable."""
        if self._model is None:
            self._model = _create_model(self.engine.settings, self._make_model)
        return self._model

    def use_model(self, name: str) -> None:
        """Changes the model for the next request; if it is unusable, the old one stays."""
        engine = self.engine.with_changes(model=name)
        self._model = _create_model(engine.settings, self._make_model)
        self.engine = engine
        self.conversation = Conversation(engine, self.conversation.id, self.conversation.branch)

    async def read_meter(self, *, reply_seq: int | None = None, usage: "Usage | None" = None) -> MeterReading:
        engine = self.engine
        return MeterReading(
            report=await self.conversation.usage(),
            reply_seq=reply_seq,
            usage=usage,
            turn_cost=engine.config.estimate_cost(usage, engine.settings.model),
            conversation_cost=await engine.store.get_cost(self.conversation.id),
        )

    async def load_compaction_stats(self, entry: "Entry") -> CompactionStats:
        return await load_compaction_stats(self.engine.store, entry)


def _create_model(settings: "Settings", make_model: ModelFactory) -> "Model":
    try:
        return make_model(settings)
    except ModelRequestRejected as error:
        raise explain_unusable_model(settings.model, error) from error


@asynccontextmanager
async def open_chat(
    overrides: SettingOverrides,
    chat_options: ChatOptions,
    *,
    ask: ApprovalCallback | None = None,
    make_model: ModelFactory = build_model,
) -> AsyncGenerator[ChatRuntime]:
    """Opens a chat. `ask` approves the tool calls of MCP servers; without it every such call is denied."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine_from_settings(overrides))
        model = (
            await asyncio.to_thread(_create_model, engine.settings, make_model) if chat_options.requires_model else None
        )
        # Before the conversation is created, so that it starts with their tools.
        started = await start_servers(engine, stack)
        yield ChatRuntime(
            started.engine,
            await open_chosen_conversation(started.engine, chat_options),
            runners=started.runners,
            server_problems=started.problems,
            approvals=Approvals(ask),
            limits=build_turn_limits(engine.settings, max_reply_tokens=chat_options.reply_tokens),
            make_model=make_model,
            model=model,
        )


async def open_chosen_conversation(engine: "Engine", chat_options: ChatOptions) -> Conversation:
    """Opens the conversation with the chosen id (created if missing), the most recently used one, or a new one."""
    if chat_options.conversation is not None:
        return await engine.conversation(
            chat_options.conversation, branch=await _find_last_used_branch(engine, chat_options.conversation)
        )
    recent = await engine.store.list_conversations(limit=1) if chat_options.resume and not chat_options.new else []
    if not recent:
        return await engine.conversation()
    return Conversation(engine, recent[0].id, await _find_last_used_branch(engine, recent[0].id))


async def _find_last_used_branch(engine: "Engine", conversation: str) -> int:
    try:
        branches = await engine.store.list_branches(conversation)
    except ConversationNotFound:
        return MAIN_BRANCH
    return max(branches, key=lambda branch: (branch.updated_at, branch.number)).number
