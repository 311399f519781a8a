"""Any history of a client in the format of any upstream, and any reply back: valid, whole, and nothing lost unnamed."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import Mock

import pytest
from format_clients import FORMATS, MODEL, PNG_BASE64, PNG_URL, SERVED_PAIRS, TRANSLATED_FORMATS
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_checks import ENCODERS, read_stream

from infra.scripted_provider import ScriptedCall, ScriptedReply, WireFormatName
from infra.scripted_provider_formats import ReplyContext
from infra.sizes import IS_FULL_SIZE
from quire.proxy.engine_variants import EngineVariant, EngineVariants, RecognizedRequest
from quire.proxy.recognition import HistoryMatch
from quire.proxy.replay_rendering import render_from_log
from quire.proxy.translation import ReplyTranslator, encode_translated, list_dropped
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore
from quire.view.batches import repair_tool_calls
from quire.view.budget import Calibration
from quire.view.rendered import drop_unsupported_parts
from quire.wire import wire_format_for
from quire.wire.codecs import CODECS
from quire.wire.fields import MADE_ID_PREFIX
from quire.wire.gemini.render import UNSIGNED_SIGNATURE as UNSIGNED_CALL
from quire.wire.messages.render import UNSIGNED_SIGNATURE

Json = dict[str, Any]
SIGNATURE = "thoughtSignature"

TEXTS = st.text(st.sampled_from('abc é日😀\n"\\{}'), min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
ARGUMENTS = st.dictionaries(st.sampled_from(["path", "ü"]), st.integers() | TEXTS | st.none(), max_size=2)


@dataclass
class History:
    """A client's list, and what is in it."""

    items: list[Json] = field(default_factory=list[Json])
    texts: list[str] = field(default_factory=list[str])
    call_count: int = 0
    signed: list[Json] = field(default_factory=list[Json])
    """Blocks of thinking with a signature, or items of encrypted reasoning."""
    has_thinking: bool = False
    has_result_image: bool = False
    has_call_ids: bool = True
    others: set[str] = field(default_factory=set[str])
    """Types that only this format has."""

    def add_text(self, text: str) -> str:
        self.texts.append(text)
        return text

    def next_call_id(self) -> str:
        self.call_count += 1
        return f"call_{self.call_count}"


@dataclass
class Writer:
    """Draws the parts of a turn; each format writes them in its own way."""

    draw: st.DrawFn
    history: History = field(default_factory=History)
    results: list[Json] = field(default_factory=list[Json])
    """Tool results that begin the next question, where a format has them there."""

    def write(self) -> History:
        for _ in range(self.draw(st.integers(1, 4))):
            self.add_question()
            calls = self.draw(st.lists(ARGUMENTS, max_size=3))
            self.add_reply([(self.history.next_call_id(), arguments) for arguments in calls])
        self.add_question()
        return self.history

    def choose(self) -> bool:
        return self.draw(st.booleans())

    def draw_text(self) -> str:
        return self.history.add_text(self.draw(TEXTS))

    def add_question(self) -> None:
        raise NotImplementedError

    def add_reply(self, calls: list[tuple[str, Json]]) -> None:
        raise NotImplementedError


class ChatWriter(Writer):
    def add_question(self) -> None:
        content: Any = self.draw_text()
        if self.choose():
            image = {
                "type": "image_url",
                "image_url": {"url": self.draw(st.sampled_from([PNG_URL, "https://a.de/b.png"]))},
            }
            content = [{"type": "text", "text": content}, image]
            if self.choose():
                content.append({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}})
                self.history.others.add("input_audio")
        self.history.items.append({"role": "user", "content": content})

    def add_reply(self, calls: list[tuple[str, Json]]) -> None:
        reply: Json = {"role": "assistant", "content": self.draw_text() if self.choose() or not calls else None}
        if self.choose():
            reply["reasoning_content"] = "hm"
            self.history.has_thinking = True
        if calls:
            functions = [(id_, {"name": "read", "arguments": json.dumps(arguments)}) for id_, arguments in calls]
            reply["tool_calls"] = [{"id": id_, "type": "function", "function": each} for id_, each in functions]
        results = [{"role": "tool", "tool_call_id": id_, "content": self.draw_text()} for id_, _ in calls]
        self.history.items += [reply, *results]


class MessagesWriter(Writer):
    def add_question(self) -> None:
        blocks = [*self.results, {"type": "text", "text": self.draw_text()}]
        self.results = []
        if self.choose():
            blocks.append(self.draw_image())
        if self.choose():
            blocks.append({"type": "container_upload", "file_id": "file_1"})
            self.history.others.add("container_upload")
        is_plain = len(blocks) == 1 and self.choose()
        self.history.items.append({"role": "user", "content": blocks[0]["text"] if is_plain else blocks})

    def draw_image(self) -> Json:
        source = {"type": "base64", "media_type": "image/png", "data": PNG_BASE64}
        return {"type": "image", "source": source if self.choose() else {"type": "url", "url": "https://a.de/b.png"}}

    def add_reply(self, calls: list[tuple[str, Json]]) -> None:
        blocks: list[Json] = []
        if self.choose():
            blocks.append(self.draw_thinking())
        if self.choose() or not calls:
            blocks.append({"type": "text", "text": self.draw_text()})
        if self.choose():
            search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
            found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
            blocks += [search, found]
            self.history.others |= {"server_tool_use", "web_search_tool_result"}
        blocks += [{"type": "tool_use", "id": id_, "name": "read", "input": arguments} for id_, arguments in calls]
        if not any(block["type"] in ("text", "tool_use") for block in blocks):
            blocks.append({"type": "text", "text": self.draw_text()})
        self.history.items.append({"role": "assistant", "content": blocks})
        self.results = [self.draw_result(id_) for id_, _ in calls]

    def draw_thinking(self) -> Json:
        self.history.has_thinking = True
        match self.draw(st.sampled_from(["signed", "unsigned", "redacted"])):
            case "unsigned":
                return {"type": "thinking", "thinking": "hm", "signature": UNSIGNED_SIGNATURE}
            case "signed":
                block = {"type": "thinking", "thinking": "hm", "signature": f"s{len(self.history.signed)}+/=="}
            case _:
                block = {"type": "redacted_thinking", "data": f"r{len(self.history.signed)}"}
        self.history.signed.append(block)
        return block

    def draw_result(self, id_: str) -> Json:
        content: Any = [{"type": "text", "text": self.draw_text()}]
        is_error = self.choose()
        if not is_error and self.choose():
            content.append(self.draw_image())
            self.history.has_result_image = True
        result = {"type": "tool_result", "tool_use_id": id_, "content": content}
        return {**result, "is_error": True} if is_error else result


class ResponsesWriter(Writer):
    def add_question(self) -> None:
        content: Any = self.draw_text()
        if self.choose():
            content = [{"type": "input_text", "text": content}, {"type": "input_image", "image_url": PNG_URL}]
            if self.choose():
                content.append({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}})
                self.history.others.add("input_audio")
        self.history.items.append({"type": "message", "role": "user", "content": content})

    def add_reply(self, calls: list[tuple[str, Json]]) -> None:
        items: list[Json] = []
        if self.choose():
            self.history.has_thinking = True
            number = len(self.history.items)
            reasoning: Json = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
            if self.choose():
                reasoning["encrypted_content"] = f"sealed{number}+/=="
                self.history.signed.append(reasoning)
            items.append(reasoning)
        if self.choose():
            items.append({"type": "web_search_call", "id": "ws_1", "status": "completed"})
            self.history.others.add("web_search_call")
        if self.choose() or not calls:
            text = {"type": "output_text", "text": self.draw_text(), "annotations": []}
            items.append({"type": "message", "role": "assistant", "content": [text]})
        outputs: list[Json] = []
        for id_, arguments in calls:
            if self.choose():
                items.append({"type": "custom_tool_call", "call_id": id_, "name": "patch", "input": self.draw_text()})
                outputs.append({"type": "custom_tool_call_output", "call_id": id_, "output": self.draw_text()})
            else:
                call = {"type": "function_call", "call_id": id_, "name": "read", "arguments": json.dumps(arguments)}
                items.append({**call, "namespace": "files"} if self.choose() else call)
                outputs.append({"type": "function_call_output", "call_id": id_, "output": self.draw_text()})
        self.history.items += [*items, *outputs]


class GeminiWriter(Writer):
    """With and without IDs of calls: providers give them, or do not, for a whole list."""

    def __init__(self, draw: st.DrawFn) -> None:
        super().__init__(draw)
        self.history.has_call_ids = self.choose()

    def add_question(self) -> None:
        parts: list[Json] = [{"text": self.draw_text()}]
        if self.choose():
            inline = {"inlineData": {"mimeType": "image/png", "data": PNG_BASE64}}
            file = {"fileData": {"mimeType": "image/png", "fileUri": "https://a.de/b.png"}}
            parts.append(inline if self.choose() else file)
        if self.choose():
            parts.append({"toolResponse": {"id": "t"}})
            self.history.others.add("toolResponse")
        self.history.items += [
            {"role": "user", "parts": self.results + parts if self.choose() else self.results}
            if self.results
            else {"role": "user", "parts": parts},
        ]
        if self.results and "functionResponse" in self.history.items[-1]["parts"][-1]:
            self.history.items.append({"role": "user", "parts": parts})
        self.results = []

    def add_reply(self, calls: list[tuple[str, Json]]) -> None:
        parts: list[Json] = []
        if self.choose():
            parts.append({"text": "hm", "thought": True})
            self.history.has_thinking = True
        if self.choose() or not calls:
            parts.append({"text": self.draw_text()})
        if self.choose():
            parts.append({"executableCode": {"language": "PYTHON", "code": self.draw_text()}})
            self.history.others.add("executableCode")
        for number, (id_, arguments) in enumerate(calls):
            call = {"name": "read", "args": arguments} | ({"id": id_} if self.history.has_call_ids else {})
            signature = {"thoughtSignature": f"c2ln{id_}"} if number == 0 and self.choose() else {}
            parts.append({"functionCall": call, **signature})
            if signature:
                self.history.signed.append(signature)
            response = {self.draw(st.sampled_from(["output", "result", "error"])): self.draw_text()}
            self.results.append({"functionResponse": {**call, "response": response}})
            self.results[-1]["functionResponse"].pop("args")
        # A client of a stream sends each chunk back as a content.
        chunks = [[part] for part in parts] if self.choose() else [parts]
        self.history.items += [{"role": "model", "parts": chunk} for chunk in chunks]


WRITERS: dict[WireFormatName, type[Writer]] = {
    "chat": ChatWriter,
    "messages": MessagesWriter,
    "responses": ResponsesWriter,
    "gemini": GeminiWriter,
}


@st.composite
def draw_history(draw: st.DrawFn, client: WireFormatName) -> History:
    return WRITERS[client](draw).write()


@cache
def make_variant(target: WireFormatName) -> EngineVariant:
    """The gateway's own engine for an upstream."""
    # The histories are new to the log, so that nothing reads it.
    no_database: Any = Mock()
    state = ServerState(SqlStore(no_database), Settings(model=MODEL), http_client=UpstreamClient())
    return EngineVariants(state.engines).get("default", MODEL, target=CODECS[target])


async def translate(client: WireFormatName, target: WireFormatName, history: History) -> tuple[Json, tuple[str, ...]]:
    """The body that an upstream gets, and what was dropped."""
    codec = CODECS[client]
    limit = {"generationConfig": {"maxOutputTokens": 100}} if client == "gemini" else {"max_tokens": 100}
    body: Json = {"model": MODEL, codec.item_field: history.items, **limit}
    raw = json.dumps(body).encode()
    request = codec.parse_request(raw, json.loads(raw))
    variant = make_variant(target)
    recognized = RecognizedRequest(
        client_request=request,
        match=HistoryMatch(conversation="c"),
        variant=variant,
        envelope=await variant.load_envelope(request),
        calibration=Calibration(),
    )
    rendering = await render_from_log(recognized, variant.engine.store)
    if client == target:
        return render_messages(recognized), ()
    content = encode_translated(recognized, rendering.rendered_request, model=None)
    return json.loads(content), list_dropped(recognized, rendering.rendered_request)


def render_messages(recognized: RecognizedRequest) -> Json:
    """The messages of the log in the client's own format, as a fitted request has them."""
    counter = recognized.message_counter
    messages = [drop_unsupported_parts(each.message) for each in recognized.client_request.messages]
    rendered = repair_tool_calls([counter.render_message(each, tokens=0) for each in messages], counter).messages
    wire_messages = [wire for each in rendered for wire in each.wire_messages]
    return counter.wire_format.build_payload(model=MODEL, system=None, tools=(), messages=wire_messages, max_tokens=9)


def list_objects(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value  # pyright: ignore
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():  # pyright: ignore
        yield from list_objects(each)


def list_strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        if value.startswith("{"):
            with suppress(ValueError):
                yield from list_strings(json.loads(value))
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():  # pyright: ignore
        yield from list_strings(each)


def list_call_ids(payload: Json) -> list[str]:
    calls = [each["functionCall"].get("id", "call_") for each in list_objects(payload) if "functionCall" in each]
    calls += [
        each.get("call_id") or each["id"]
        for each in list_objects(payload)
        if each.get("type") in ("function", "tool_use", "function_call", "custom_tool_call")
        and "parameters" not in each
    ]
    return [id_ for id_ in calls if id_.startswith(("call_", MADE_ID_PREFIX))]


def list_result_ids(payload: Json) -> list[str]:
    results = [
        each["functionResponse"].get("id", "call_") for each in list_objects(payload) if "functionResponse" in each
    ]
    return results + [
        each.get("tool_call_id") or each.get("tool_use_id") or each["call_id"]
        for each in list_objects(payload)
        if each.get("role") == "tool" or str(each.get("type")).endswith(("tool_result", "_output"))
        if not str(each.get("type")).startswith("web_search")
    ]


@pytest.mark.parametrize(("client", "target"), SERVED_PAIRS)
@settings(max_examples=200 if IS_FULL_SIZE else 40)
@given(data=st.data())
def test_any_history_in_any_format(client: WireFormatName, target: WireFormatName, data: st.DataObject):
    history = data.draw(draw_history(client))
    payload, dropped = asyncio.run(translate(client, target, history))
    assert wire_format_for(CODECS[target].name).check(payload) == []
    expected_ids = [f"call_{number + 1}" for number in range(history.call_count)]
    if history.has_call_ids:
        assert list_call_ids(payload) == expected_ids
        assert sorted(list_result_ids(payload)) == sorted(expected_ids)
    else:
        assert len(list_call_ids(payload)) == history.call_count
        assert sorted(list_result_ids(payload)) == sorted(list_call_ids(payload))
    sent = list(list_strings(payload))
    assert all(any(text.strip() in each for each in sent) for text in history.texts)
    seals = [
        each for each in list_objects(payload) if each.get("type") in ("thinking", "redacted_thinking", "reasoning")
    ]
    if client == target == "gemini":
        signatures = [{"thoughtSignature": each} for part in list_objects(payload) if (each := part.get(SIGNATURE))]
        assert [each for each in signatures if each[SIGNATURE] != UNSIGNED_CALL] == history.signed
    elif client == target:
        assert seals == history.signed
    else:
        assert seals == []
        expected = {f"messages[{name}]" for name in history.others}
        expected |= {"messages[thinking]"} if history.has_thinking else set()
        expected |= {"messages[image]"} if history.has_result_image and target == "chat" else set()
        assert set(dropped) == expected | {"max_tokens" for _ in range(client == "responses")}


REPLIES = st.builds(
    ScriptedReply,
    text=st.just("") | TEXTS,
    thinking=st.just("") | TEXTS,
    calls=st.lists(st.builds(ScriptedCall, st.just("read"), ARGUMENTS), max_size=3).map(tuple),
)


@pytest.mark.parametrize("target", FORMATS, ids=[f"upstream-{name}" for name in FORMATS])
@pytest.mark.parametrize("client", TRANSLATED_FORMATS)
@settings(max_examples=200 if IS_FULL_SIZE else 20)
@given(reply=REPLIES)
def test_any_reply_in_any_format(client: WireFormatName, target: WireFormatName, reply: ScriptedReply):
    """What a client reads of a stream is what the upstream said, with the calls of the reply that is recorded."""
    codec = CODECS[client]
    body: Json = {
        "model": MODEL,
        "stream": True,
        codec.item_field: [{"role": "user", "content": "Hi"}],
        "max_tokens": 9,
    }
    request = codec.parse_request(b"{}", body)
    recognized: Any = Mock(client_request=request, tokens=1, ratio=1.0)
    decoder = CODECS[target].make_decoder(is_translated=True)
    translator = ReplyTranslator(recognized, request_id="r1")
    stream = translator.start()
    for event in ENCODERS[target].encode_events(reply, ReplyContext(MODEL, 1, 10)):
        decoder.feed(event)
        stream += translator.encode(decoder.take_deltas())
    (recorded,) = [translator.adapt(each) for each in decoder.build_replies()]
    stream += translator.finish([recorded], None)
    reading = read_stream(client, stream)
    assert (reading.text, reading.thinking, reading.is_complete) == (reply.text, reply.thinking, True)
    made = [(name, json.loads(arguments or "{}")) for _, name, arguments in reading.calls.values()]
    assert made == [(call.name, call.arguments) for call in reply.calls]
    assert [id_ for id_, _, _ in reading.calls.values()] == [call.id for call in recorded.message.tool_calls]
    assert recorded.message.text == reply.text
