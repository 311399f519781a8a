"""`Session` and `call_model_input_filter` of the OpenAI Agents SDK. Importing this module needs the SDK.

A session is a conversation of the log. The filter builds each request from it, within the context window, and the
request's manifest is stored with the reply when the SDK adds that to the session.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from itertools import groupby
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

from quire.engine import Conversation, Engine, open_engine
from quire.model import Message, ToolDefinition, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, to_plain_json
from quire.proxy.engine_variants import Envelope
from quire.proxy.framework_requests import FrameworkRequest, adapt_engine, build_request, find_latest_branch
from quire.proxy.recognition import HistoryMatch
from quire.wire import Reply
from quire.wire.responses.parse import is_assistant_item
from quire.wire.responses.render import OpenAIResponsesFormat

FIELDS_KEY = "openai_agents"
"""Key of `provider_fields` with the changes that turn rendered items into the original ones."""
_UNSENT_FIELDS = ("id", "status")
"""Fields that a model does not see, and that the SDK or a provider may add or drop."""

_format = OpenAIResponsesFormat()


@asynccontextmanager
async def open_session(session_id: str, url: str, **options: Any) -> AsyncGenerator["QuireSession"]:
    """Opens a session in the log at `url`; it takes the options of `quire.open`."""
    async with open_engine(url, **options) as engine:
        yield QuireSession(session_id, engine)


class QuireSession:
    """A session whose items are messages of one conversation, which has the session's id.

    Give it to `Runner.run(session=…)`, and its `filter_input` to `RunConfig(call_model_input_filter=…)`. One run at a
    time uses a session object. The log itself takes concurrent writers.
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
        """Appends items. The first reply among them answers the last request of `filter_input`."""
        new_items: list[TResponseInputItem] = []
        for item in items:
            key = make_item_key(cast("dict[str, Any]", item))
            if self._stored_ahead[key]:
                self._stored_ahead[key] -= 1
            else:
                new_items.append(item)
        for message in parse_items(new_items):
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
        """Compacts what later requests send. The items stay. Without `force`, only above the background threshold."""
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
    # The SDK offers the handoffs that are enabled now as tools.
    handoffs: list[Handoff[Any, Any]] = []
    for each in data.agent.handoffs:
        offered: Handoff[Any, Any] = each if isinstance(each, Handoff) else handoff(each)
        is_enabled = offered.is_enabled
        if not isinstance(is_enabled, bool):
            is_enabled = is_enabled(context, data.agent)
            is_enabled = await is_enabled if isawaitable(is_enabled) else is_enabled
        handoffs += [offered] if is_enabled else []
    tools = Converter.convert_tools(await data.agent.get_all_tools(context), handoffs).tools
    functions = [cast("dict[str, Any]", tool) for tool in tools if tool["type"] == "function"]
    others = [cast("dict[str, Any]", tool) for tool in tools if tool["type"] != "function"]
    output = data.agent.output_type
    if output is not None and output is not str and not isinstance(output, AgentOutputSchemaBase):
        output = AgentOutputSchema(output)
    schema = Converter.get_response_format(output if isinstance(output, AgentOutputSchemaBase) else None)
    texts = [*others, *([schema] if isinstance(schema, dict) else [])]
    # Reasoning that is only an id can be resolved by the provider's own store alone.
    has_bare_reasoning = any(
        item.get("type") == "reasoning" and not (item.get("encrypted_content") or item.get("content")) for item in items
    )
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


def parse_items(items: Sequence[object]) -> list[Message]:
    """Parses items as messages. Adjacent items of the assistant become one message."""
    plain = [to_plain_json(item) for item in items]
    messages: list[Message] = []
    for is_assistant, group in groupby(plain, lambda item: is_assistant_item({"type": "message", **item})):
        group_items = list(group)
        for originals in [group_items] if is_assistant else [[item] for item in group_items]:
            [message] = _format.parse_messages(originals)
            rendered = _format.render_message(message)
            fields: dict[str, Any] = {}
            if len(rendered) == len(originals):
                changes = [_find_change(*pair) for pair in zip(rendered, originals, strict=True)]
                fields = {"changes": changes} if any(changes) else {}
            else:
                # Items that cannot be rendered are stored whole.
                fields = {"items": originals}
            if fields:
                provider_fields = {**(message.provider_fields or {}), FIELDS_KEY: fields}
                message = message.model_copy(update={"provider_fields": provider_fields})
            messages.append(message)
    return messages


def _find_change(rendered: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    """What `list_items` has to set and to remove in the rendered item to get the original one."""
    missing = object()
    added = {key: value for key, value in original.items() if rendered.get(key, missing) != value}
    removed = [key for key in rendered if key not in original]
    return {**({"set": added} if added else {}), **({"unset": removed} if removed else {})}


def list_items(message: Message) -> list[dict[str, Any]]:
    """The items that a message was made from, equal to what `parse_items` was given."""
    fields, rendered = get_object(message.provider_fields or {}, FIELDS_KEY), _format.render_message(message)
    if "items" in fields:
        return filter_objects(fields["items"])
    changes = filter_objects(fields.get("changes")) or [{} for _ in rendered]
    return [
        {key: value for key, value in item.items() if key not in (change.get("unset") or ())}
        | get_object(change, "set")
        for item, change in zip(rendered, changes, strict=True)
    ]


def make_item_key(item: dict[str, Any]) -> str:
    """Text that two forms of the same item share."""
    [message] = _format.parse_messages([item])
    rendered = _format.render_message(message) or [item]
    return dump_json([{key: each[key] for key in sorted(each) if key not in _UNSENT_FIELDS} for each in rendered])
