"""Requests of another framework's agent: its messages are stored first, then the request is built from the log.

Frameworks pass the whole list with each model call, and only its end is new. A list is converted through a cache,
matched to the log by the rules of `recognition`, and the request is built with the framework's instructions and tools.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from cachetools import LRUCache

from quire.concurrency.worker_threads import measure_messages
from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.engine import Conversation, Engine
from quire.engine.builtin_tools import BuiltinTools
from quire.engine.request import Request
from quire.errors import ContextOverflow
from quire.model import (
    CHAIN_ROOT,
    Entry,
    ForwardedRequest,
    Message,
    ToolCallPart,
    ToolDefinition,
    iter_paths,
    next_path,
)
from quire.model.policy import WireFormatName
from quire.proxy.engine_variants import Envelope
from quire.proxy.recognition import HistoryMatch, RequestedConversation, match_history
from quire.wire import Reply
from quire.wire.client_messages import ClientMessage, ParsedMessage, normalize_message

Source = TypeVar("Source")

MAX_CACHED_HISTORIES = 32


class ConvertedMessage(NamedTuple):
    message: Message | None
    """None for what is no content, such as a changed setting."""
    dropped: tuple[str, ...] = ()
    """Names of what the message has no part for."""


class ConvertedHistory(NamedTuple):
    messages: tuple[ClientMessage, ...]
    paths: tuple[bytes, ...]
    """The client's path after each message."""
    match_keys: tuple[tuple[bytes | None, ...], ...]
    """For each element of the framework's list, the keys of its messages."""
    dropped: tuple[str, ...]


class _ConvertedSource(NamedTuple):
    snapshot: object
    messages: tuple[ClientMessage, ...]
    paths: tuple[bytes, ...]
    """The client's path after each message."""
    match_keys: tuple[bytes | None, ...]
    dropped: tuple[str, ...]


def make_match_key(message: Message) -> bytes:
    """Key by which a message of a request is found among a framework's own: a digest of its normal form."""
    return sha256(normalize_message(message).canonical_json().encode()).digest()


_UNEQUAL = object()


class ConversionCache(Generic[Source]):
    """Converts lists of messages. A list that starts like an earlier one is converted from there on.

    The gateway's cache of known messages finds the start of a list by the bytes of a body. A framework's messages are
    objects without such bytes, so they are compared with copies.
    """

    def __init__(self, convert: Callable[[Source], Sequence[ConvertedMessage]]) -> None:
        self._convert_source = convert
        self._histories: LRUCache[str, list[_ConvertedSource]] = LRUCache(MAX_CACHED_HISTORIES)

    def convert(self, conversation: str, sources: Sequence[Source]) -> ConvertedHistory:
        known = self._histories.get(conversation, [])
        pairs = zip(known, sources, strict=False)
        history = [each for each, _ in takewhile(lambda pair: _is_equal(pair[0].snapshot, pair[1]), pairs)]
        last_path = next((each.paths[-1] for each in reversed(history) if each.paths), CHAIN_ROOT)
        for source in sources[len(history) :]:
            converted = self._convert_source(source)
            messages = [ParsedMessage(each.message) for each in converted if each.message is not None]
            paths = list(iter_paths([each.match_key for each in messages], start=last_path))
            last_path = paths[-1] if paths else last_path
            keys = [None if each.message is None else make_match_key(each.message) for each in converted]
            dropped = tuple(name for each in converted for name in each.dropped)
            history.append(
                _ConvertedSource(_take_snapshot(source), tuple(messages), tuple(paths), tuple(keys), dropped)
            )
        self._histories[conversation] = history
        return ConvertedHistory(
            messages=tuple(message for source in history for message in source.messages),
            paths=tuple(path for source in history for path in source.paths),
            match_keys=tuple(source.match_keys for source in history),
            dropped=tuple(dict.fromkeys(name for source in history for name in source.dropped)),
        )


def _take_snapshot(source: object) -> object:
    """A copy, because the framework or the program may change a message in place."""
    try:
        return deepcopy(source)
    except Exception:  # noqa: BLE001 (a tool may return any object; one without a copy is converted each time)
        return _UNEQUAL


def _is_equal(snapshot: object, source: Any) -> bool:
    try:
        return bool(snapshot == source)
    except Exception:  # noqa: BLE001 (a tool may return any object, and its comparison may fail)
        return False


async def store_messages(engine: Engine, conversation: str, history: ConvertedHistory) -> HistoryMatch:
    """Appends those messages of a framework's list that are not stored yet. Returns the position after them."""
    messages = history.messages
    size = measure_messages(each.message for each in messages)
    match = await match_history(engine.store, messages, history.paths, RequestedConversation(conversation), size=size)
    if match.creates_conversation:
        await engine.conversation(conversation)
    if match.stored_end < len(messages):
        new = [each.message for each in messages[match.stored_end :]]
        await Conversation(engine, conversation, match.branch).append(*new)
    if match.client_path is None or not history.paths:
        return match
    return replace(match, stored_end=len(messages), client_path=history.paths[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRequest:
    """A request that fits, and the branch to record its reply on."""

    request: Request
    conversation: Conversation
    client_path: bytes | None
    """The path of the framework's list, if that starts with the conversation."""

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
        """Stores the reply with the manifest of the request, and with the path by which the next list finds it."""
        request = self.request
        if self.client_path is not None:
            client_path = next_path(self.client_path, normalize_message(reply.message).canonical_json())
            log_path = next_path(request.after, reply.message.canonical_json())
            if client_path != log_path or self.conversation.engine.store.masker is not None:
                request = replace(request, client_path=client_path)
        return await self.conversation.record(reply, request=request)


def adapt_engine(
    engine: Engine, *, wire_format: WireFormatName | None = None, offers_history_tools: bool = False
) -> Engine:
    """The engine for requests of a framework. Tokens are counted in `wire_format`, by default the model's.

    With `offers_history_tools`, a request without the whole history has Quire's tools to read it. The framework runs
    their calls with `read_history`.
    """
    return engine.with_changes(
        vault=None,
        shares=engine.config.client_shares,
        runs_turns=offers_history_tools,
        wire_format=wire_format or engine.settings.wire_format,
    )


async def build_request(engine: Engine, position: HistoryMatch, envelope: Envelope) -> FrameworkRequest:
    """Builds the request that continues a branch, with the framework's instructions and tools.

    The engine is one of `adapt_engine`. Rules and memories of the engine's agent stay.
    """
    if engine.config.runs_turns and engine.settings.context_tools:
        envelope = replace(envelope, tools=(*envelope.tools, *(tool.to_definition() for tool in HISTORY_TOOLS)))
    changes: dict[str, Any] = {"agent": envelope.agent}
    if envelope.other_tokens:
        changes["reserved_response_tokens"] = engine.policy.reserved_response_tokens + envelope.other_tokens
        if changes["reserved_response_tokens"] >= engine.policy.window:
            raise ContextOverflow(
                needed_tokens=changes["reserved_response_tokens"],
                available_tokens=engine.policy.window,
                largest_items=[],
            )
    fitted = Conversation(engine.with_changes(**changes), position.conversation, position.branch)
    request = await fitted.prepare()
    if envelope.dropped:
        assembly = request.assembly
        forwarded = ForwardedRequest(
            form="adapted", digest=assembly.rendered.digest, replayable=True, dropped=envelope.dropped
        )
        request = replace(request, assembly=assembly.with_record(forwarded=forwarded))
    return FrameworkRequest(request=request, conversation=fitted, client_path=position.client_path)


async def read_history(engine: Engine, conversation: str, call: ToolCallPart) -> Message:
    """Runs a call of one of Quire's history tools on the branch that was used last."""
    branch = await find_latest_branch(engine, conversation)
    tools = BuiltinTools(engine, conversation, branch)
    result = await tools.run(call.name, call.arguments, recalled_texts=tuple)
    return Message.tool(call.id, result.text, is_error=result.is_error)


async def find_latest_branch(engine: Engine, conversation: str) -> int:
    """The number of the branch that was used last. Creates the conversation if it does not exist."""
    opened = await engine.conversation(conversation)
    latest = await engine.store.match_history((), conversation=conversation)
    return opened.branch if latest is None else latest.branch.number
