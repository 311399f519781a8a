"""`Session` and `call_model_input_filter` of the OpenAI Agents SDK. Importing this module needs the SDK.

A session is a conversation of the log. The filter builds each request from it, within the context window, and the
request's manifest is stored with the reply when the SDK adds that to the session.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any, cast

from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    Handoff,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    SessionSettings,
    handoff,
)
from agents.items import TResponseInputItem
from agents.memory import OpenAIResponsesCompactionArgs
from agents.memory.session_settings import resolve_session_limit
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.models.openai_responses import Converter
from agents.run_config import CallModelData, ModelInputData

from quire.adapters.openai_agents_items import list_items, make_item_key, parse_items
from quire.engine import Conversation, Engine, open_engine
from quire.model import ToolDefinition, Usage
from quire.model.json_values import dump_json
from quire.proxy.engine_variants import Envelope
from quire.proxy.framework_requests import FrameworkRequest, adapt_engine, build_request, find_latest_branch
from quire.proxy.recognition import HistoryMatch
from quire.wire import Reply


@asynccontextmanager
async def open_session(session_id: str, url: str, **options: Any) -> AsyncGenerator["QuireSession"]:
    """Opens a session in the log at `url`; `options` are those of `quire.open`."""
    async with open_engine(url, **options) as engine:
        yield QuireSession(session_id, engine)


class QuireSession:
    """A session whose items are messages of one conversation, which has the session's id.

    Give it to `Runner.run(session=…)`, and its `filter_input` to `RunConfig(call_model_input_filter=…)`. One run at a
    time uses a session object; the log itself takes concurrent writers.
    """

    def __init__(self, session_id: str, engine: Engine, *, session_settings: SessionSettings | None = None) -> None:
        self.session_id, self.session_settings = session_id, session_settings or SessionSettings()
        self._engine = engine
        self._request: FrameworkRequest | None = None
        self._usage: Usage | None = None
        self._stored_ahead: Counter[str] = Counter()

    @property
    def hooks(self) -> RunHooks[Any]:
        """Hooks for `Runner.run(hooks=…)` that record the usage of each reply: its cost, and the real token counts."""
        return _UsageHooks(self)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """All items, archived or not; with `limit`, the latest ones. They equal what was added."""
        branch = await self._open_branch()
        entries = [entry for entry in await branch.messages() if entry.purged_at is None]
        items = [item for entry in entries for item in list_items(entry.message)]
        resolved = resolve_session_limit(limit, self.session_settings)
        return _to_input(items if resolved is None else items[-resolved:] if resolved > 0 else [])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Appends items. The first reply among them is that to the last request of `filter_input`."""
        for message in parse_items([item for item in items if not self._is_stored(item)]):
            if message.role == "assistant" and self._request is not None:
                request, self._request = self._request, None
                await request.record(Reply(message, self._usage, None))
                self._usage = None
            else:
                # A message of the user: the last request had no reply.
                self._request = None
                await (await self._open_branch()).append(message)

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the latest item from the session. It stays in the log, on the branch that it was added to."""
        branch = await self._open_branch()
        newest = await self._engine.store.read_tail(self.session_id, 1, branch=branch.branch, kinds=["message"])
        if not newest:
            return None
        *remaining, popped = list_items(newest[0].message)
        fork = await branch.fork(newest[0].seq - 1)
        if remaining:
            await fork.append(*parse_items(remaining))
        return _to_input([popped])[0]

    async def clear_session(self) -> None:
        """Starts an empty branch. The items are archived on the branch before it, and nothing is deleted."""
        await (await self._open_branch()).fork(0)
        self._request = None
        self._stored_ahead.clear()

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Compacts what later requests send; the items stay. Without `force`, only above the background threshold."""
        branch = await self._open_branch()
        if args is None or args.get("force"):
            await branch.compact()
        else:
            await branch.compact(trigger="background")

    async def filter_input(self, data: CallModelData[Any]) -> ModelInputData:
        """The `call_model_input_filter`: instructions, tools and messages together fit the window."""
        branch = await self._open_branch()
        items = [cast("dict[str, Any]", item) for item in data.model_data.input]
        await self._store_new(branch, items)
        engine = adapt_engine(self._engine, wire_format="responses")
        envelope = await _read_envelope(data, items, engine)
        # The session's items are read from the log, so that no path of a list is needed to find them again.
        position = HistoryMatch(conversation=self.session_id, branch=branch.branch, client_path=None)
        fitted = await build_request(engine, position, envelope)
        self._request, self._usage = fitted, None
        payload = fitted.request.to_responses()
        sent = [_to_model_item(item) for item in payload["input"]]
        return ModelInputData(input=_to_input(sent), instructions=payload.get("instructions"))

    async def _open_branch(self) -> Conversation:
        """The branch that was used last."""
        return Conversation(self._engine, self.session_id, await find_latest_branch(self._engine, self.session_id))

    async def _store_new(self, branch: Conversation, items: Sequence[dict[str, Any]]) -> None:
        """Stores what a streamed run adds to its session only after the filter, so that the request can have it."""
        newest = await self._engine.store.read_tail(self.session_id, 1, branch=branch.branch, kinds=["message"])
        keys = [make_item_key(item) for item in items]
        head = make_item_key(list_items(newest[0].message)[-1]) if newest else None
        start = next((index + 1 for index in reversed(range(len(keys))) if keys[index] == head), None)
        if start is None:
            # The SDK or a callback changed the list: only its last items, which the user sent, can be new.
            is_input = [item.get("role") in ("user", "system", "developer") for item in items]
            start = next((index + 1 for index in reversed(range(len(items))) if not is_input[index]), 0)
        if start < len(items):
            await branch.append(*parse_items(items[start:]))
            self._stored_ahead.update(keys[start:])

    def _is_stored(self, item: TResponseInputItem) -> bool:
        key = make_item_key(cast("dict[str, Any]", item))
        if not self._stored_ahead[key]:
            return False
        self._stored_ahead[key] -= 1
        return True

    def set_usage(self, usage: Usage) -> None:
        self._usage = usage


class _UsageHooks(RunHooks[Any]):
    def __init__(self, session: QuireSession) -> None:
        self._session = session

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        usage = response.usage
        self._session.set_usage(
            Usage(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.input_tokens_details.cached_tokens or 0,
            )
        )


async def _read_envelope(data: CallModelData[Any], items: Sequence[dict[str, Any]], engine: Engine) -> Envelope:
    """The instructions, tools, handoffs and output schema that the SDK sends with the messages."""
    context: RunContextWrapper[Any] = RunContextWrapper(data.context)
    handoffs = await _list_handoffs(data.agent, context)
    tools = Converter.convert_tools(await data.agent.get_all_tools(context), handoffs).tools
    functions = [cast("dict[str, Any]", tool) for tool in tools if tool["type"] == "function"]
    others = [cast("dict[str, Any]", tool) for tool in tools if tool["type"] != "function"]
    schema = Converter.get_response_format(_get_output_schema(data.agent))
    texts = [*others, *([schema] if isinstance(schema, dict) else [])]
    has_bare_reasoning = any(item.get("type") == "reasoning" and not _has_content(item) for item in items)
    return Envelope(
        base_agent=engine.agent,
        message_counter=engine.message_counter,
        system=data.model_data.instructions or None,
        tools=tuple(
            ToolDefinition(
                name=tool["name"], description=tool.get("description") or "", parameters=tool["parameters"] or {}
            )
            for tool in functions
        ),
        other_texts=tuple(map(dump_json, texts)),
        dropped=(
            *(f"tools[{tool['type']}]" for tool in others),
            *(["text.format"] if isinstance(schema, dict) else []),
            *(["input[reasoning]"] if has_bare_reasoning else []),
        ),
    )


async def _list_handoffs(agent: Agent[Any], context: RunContextWrapper[Any]) -> list[Handoff[Any, Any]]:
    """The handoffs that are enabled now, which the SDK offers as tools."""
    enabled: list[Handoff[Any, Any]] = []
    for each in agent.handoffs:
        offered: Handoff[Any, Any] = each if isinstance(each, Handoff) else handoff(each)
        is_enabled = offered.is_enabled
        if not isinstance(is_enabled, bool):
            is_enabled = is_enabled(context, agent)
            is_enabled = await is_enabled if isawaitable(is_enabled) else is_enabled
        enabled += [offered] if is_enabled else []
    return enabled


def _get_output_schema(agent: Agent[Any]) -> AgentOutputSchemaBase | None:
    output = agent.output_type
    if output is None or output is str or isinstance(output, AgentOutputSchemaBase):
        return output if isinstance(output, AgentOutputSchemaBase) else None
    return AgentOutputSchema(output)


def _has_content(reasoning: dict[str, Any]) -> bool:
    """Whether a reasoning item is more than an id that only the provider's own store can resolve."""
    return bool(reasoning.get("encrypted_content") or reasoning.get("content"))


def _to_model_item(item: dict[str, Any]) -> dict[str, Any]:
    """The item in a form that the SDK's models for chat completions take, too.

    Without an id they take a message of the assistant only with text and no further fields. The models for responses
    remove the SDK's placeholder of an id.
    """
    if item.get("type") != "message" or item.get("role") != "assistant" or "id" in item:
        return item
    if isinstance(item["content"], str):
        return {key: value for key, value in item.items() if key in ("type", "role", "content", "phase")}
    return {**item, "id": FAKE_RESPONSES_ID}


def _to_input(items: Sequence[dict[str, Any]]) -> list[TResponseInputItem]:
    return cast("list[TResponseInputItem]", list(items))
