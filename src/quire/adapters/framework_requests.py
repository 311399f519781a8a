"""Requests of another framework's agent: its messages are stored first, then the request is built from the log."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.adapters.conversion_cache import ConvertedHistory
from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.engine import Conversation, Engine
from quire.engine.builtin_tools import BuiltinTools
from quire.engine.request import Request
from quire.errors import ContextOverflow
from quire.log import BranchMatch
from quire.model import Entry, ForwardedRequest, Message, ToolCallPart, ToolDefinition
from quire.model.agents import AgentTool
from quire.model.policy import Provider
from quire.view.strategies import get_strategy
from quire.view.wire_formats import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnvelope:
    """Everything in an agent's request except its messages."""

    instructions: str = ""
    tools: tuple[ToolDefinition, ...] = ()
    other_texts: tuple[str, ...] = ()
    """JSON that the framework adds to the request, such as an output schema. It reduces the room for messages."""
    dropped: tuple[str, ...] = ()
    """Names of what has no place in Quire's messages and tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRequest:
    """A request that fits, and the branch to record its reply on."""

    request: Request
    conversation: Conversation

    @property
    def messages(self) -> list[Message]:
        return [each.message for each in self.request.assembly.rendered.messages]

    @property
    def instructions(self) -> str | None:
        return self.request.assembly.rendered.system

    @property
    def tools(self) -> tuple[ToolDefinition, ...]:
        return self.request.assembly.rendered.tools

    async def record(self, reply: Reply) -> Entry:
        """Stores the reply with the manifest of the request."""
        return await self.conversation.record(reply, request=self.request)


async def build_request(
    engine: Engine,
    conversation: str,
    branch: int,
    envelope: AgentEnvelope,
    *,
    provider: Provider | None = None,
    offers_history_tools: bool = False,
) -> FrameworkRequest:
    """Builds the request that continues a branch, with the framework's instructions and tools.

    Tokens are counted in the wire format of `provider`, by default that of the model. With `offers_history_tools`, a
    request without the whole history has Quire's tools to read it. The framework runs their calls with `read_history`.
    """
    adapted = _adapt_engine(engine, envelope, provider=provider, offers_history_tools=offers_history_tools)
    fitted = Conversation(adapted, conversation, branch)
    request = await fitted.prepare()
    if envelope.dropped:
        request = _name_dropped(request, envelope.dropped)
    return FrameworkRequest(request=request, conversation=fitted)


def _name_dropped(request: Request, dropped: tuple[str, ...]) -> Request:
    """The request with these names in its manifest."""
    assembly = request.assembly
    forwarded = ForwardedRequest(form="adapted", digest=assembly.rendered.digest, replayable=True, dropped=dropped)
    return replace(request, assembly=replace(assembly, forwarded=forwarded))


async def read_history(engine: Engine, conversation: str, call: ToolCallPart) -> Message:
    """Runs a call of one of Quire's history tools on the branch that was used last."""
    branch = await find_latest_branch(engine, conversation)
    tools = BuiltinTools(engine, conversation, branch, recall=engine.recall)
    result = await tools.run(call.name, call.arguments, recalled_texts=tuple)
    return Message.tool(call.id, result.text, is_error=result.is_error)


async def find_latest_branch(engine: Engine, conversation: str) -> int:
    """The number of the branch that was used last; creates the conversation if it does not exist."""
    opened = await engine.conversation(conversation)
    latest = await engine.store.match_history((), conversation=conversation)
    return opened.branch if latest is None else latest.branch.number


def _adapt_engine(
    engine: Engine, envelope: AgentEnvelope, *, provider: Provider | None, offers_history_tools: bool
) -> Engine:
    """The engine with the framework's instructions and tools. Rules and memories of its own agent stay."""
    added = HISTORY_TOOLS if offers_history_tools and engine.settings.context_tools else ()
    definitions = (*envelope.tools, *(tool.to_definition() for tool in added))
    tools = tuple(AgentTool(definition=definition, include="always") for definition in definitions)
    instructions = "\n\n".join(filter(None, (engine.config.agent.instructions, envelope.instructions)))
    agent = engine.agent.model_copy(update={"instructions": instructions, "tools": tools})
    shares = engine.settings.shares or get_strategy(engine.settings.strategy).shares
    # The framework has chosen the tools: they may take the whole budget.
    changes: dict[str, Any] = {"provider": provider} if provider is not None else {}
    adapted = engine.with_changes(
        agent=agent, vault=None, shares={**shares, "tools": 1.0}, runs_turns=offers_history_tools, **changes
    )
    if not envelope.other_texts:
        return adapted
    counter, policy = adapted.message_counter.token_counter, adapted.policy
    reserved = policy.reserved_response_tokens + sum(map(counter.count, envelope.other_texts))
    if reserved >= policy.window:
        raise ContextOverflow(needed_tokens=reserved, available_tokens=policy.window, largest_items=[])
    return adapted.with_changes(reserved_response_tokens=reserved)


async def store_messages(engine: Engine, conversation: str, history: ConvertedHistory) -> int:
    """Appends those messages of a framework's list that are not stored yet; returns the number of their branch.

    The list starts with the conversation, or with a later message of it, or has only new messages. Any other list is
    stored on a branch of its own, which starts where the list differs.
    """
    opened = await engine.conversation(conversation)
    messages = history.messages
    match = await engine.store.match_history(history.paths, conversation=conversation)
    branch, stored = opened.branch, 0
    if match is not None:
        branch, stored = await _find_position(engine, match, messages)
    if stored < len(messages):
        await Conversation(engine, conversation, branch).append(*messages[stored:])
    return branch


async def _find_position(engine: Engine, match: BranchMatch, messages: Sequence[Message]) -> tuple[int, int]:
    """The branch to continue, and the number of messages that it has already."""
    branch = match.branch
    is_at_head = await _is_last_message(engine, match)
    if match.length and (is_at_head or _has_reply(messages[: match.length])):
        if not is_at_head:
            branch = await engine.store.fork(branch.conversation, at=match.seq, branch=branch.number)
        return branch.number, match.length
    number = await find_latest_branch(engine, branch.conversation)
    tail = await engine.store.read_tail(branch.conversation, 1, branch=number, kinds=["message"])
    for index in reversed(range(len(messages))):
        if tail and messages[index].canonical_json() == tail[0].raw:
            return number, index + 1
    if tail and _has_reply(messages):
        number = (await engine.store.fork(branch.conversation, at=0, branch=number)).number
    return number, 0


async def _is_last_message(engine: Engine, match: BranchMatch) -> bool:
    """Whether no message follows the matched one; a compaction or a pin may."""
    branch = match.branch
    tail = await engine.store.read_tail(branch.conversation, 1, branch=branch.number, kinds=["message"])
    return bool(tail) and tail[0].seq == match.seq


def _has_reply(messages: Iterable[Message]) -> bool:
    return any(message.role == "assistant" for message in messages)
