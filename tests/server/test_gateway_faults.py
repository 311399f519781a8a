"""When something fails on the way: what the client is told, what is kept, and that nothing acknowledged is missing."""

import asyncio
import json

import pytest
from gateway_parts import Gateway, assistant, gateway, user

from quire.errors import StoreUnavailable
from quire.log import SqlStore
from upstream import DONE, Asked, event, says, streams, upstream


async def hangs(asked: Asked) -> None:
    await asked.until_closed()


async def resets(asked: Asked) -> None:
    asked.reset()


async def halves(asked: Asked) -> None:
    await asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n")
    await asked.send(b'{"choices": [{"mess')
    asked.reset()


async def cut_short(asked: Asked) -> None:
    """Half a JSON document that its own headers call whole."""
    await asked.answer(b'{"choices": [{"message": {"role": "assistant", "con')


async def breaks_off(asked: Asked) -> None:
    await asked.begin_events()
    await asked.events(event({"role": "assistant", "content": "Once"}), event(" upon"))
    await asyncio.sleep(0.05)
    asked.reset()


async def falls_silent(asked: Asked) -> None:
    await asked.begin_events()
    await asked.events(event("Once"), event(" upon"))
    await asked.until_closed()


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (hangs, 504, "model_silent"),
        (resets, 502, "model_unavailable"),
        (halves, 502, "model_unavailable"),
        (cut_short, 502, "model_unavailable"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_fails_before_its_first_word_is_a_clear_error(
    store: SqlStore, fault, status: int, code: str, stream: bool
):
    async with upstream(fault) as up, gateway(store, up.url, patience=0.3) as kept:
        answer = await kept.ask(user("Hello"), stream=stream)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.json()["error"]["code"] == code
        assert answer.headers["content-type"] == "application/problem+json"
        assert await store.conversations() == []


async def test_an_upstream_that_cannot_be_reached_is_said_to_be(store: SqlStore):
    async with gateway(store, "http://127.0.0.1:9/v1") as kept:
        answer = await kept.ask(user("Hello"))
        assert (answer.status_code, answer.json()["code"]) == (502, "model_unavailable")


@pytest.mark.parametrize(("fault", "code"), [(breaks_off, "model_unavailable"), (falls_silent, "model_silent")])
async def test_a_stream_that_breaks_off_ends_with_an_error_and_is_kept_as_unfinished(store: SqlStore, fault, code: str):
    async with upstream(fault) as up, gateway(store, up.url, patience=0.3) as kept:
        answer = await kept.ask(user("Tell"), stream=True, x_quire_conversation="c")
        *words, last = [block for block in answer.content.split(b"\n\n") if block]
        assert b"".join(words).count(b"data:") == 2
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == code
        assert b"[DONE]" not in answer.content
        assert await kept.said("c") == [("user", "Tell"), ("assistant", "Once upon")]
        reply = await store.entry("c", 2)
        assert reply.notes.unfinished
        assert (await store.request(answer.headers["x-quire-request"])).seq == 2


async def test_an_error_inside_the_upstreams_stream_passes_through(store: SqlStore):
    told = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    async with upstream(streams(event("Once"), told)) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("Tell"), stream=True, x_quire_conversation="c")
        assert answer.content == event("Once") + told
        assert (await store.entry("c", 2)).notes.unfinished


async def test_a_stream_without_a_done_is_whole_if_it_says_why_it_ended(store: SqlStore):
    async with upstream(streams(event("All"), event({}, "stop"))) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("Tell"), stream=True, x_quire_conversation="c")
        assert answer.content == event("All") + event({}, "stop")
        assert not (await store.entry("c", 2)).notes.unfinished


async def test_calls_that_were_not_whole_are_not_kept(store: SqlStore):
    def call(index: int, arguments: str) -> dict[str, object]:
        function = {"name": "f", "arguments": arguments}
        return {"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]}

    async def half_a_call(asked: Asked) -> None:
        await asked.begin_events()
        await asked.events(event("Let me look."), event(call(0, '{"a": 1}')), event(call(1, '{"a":')))
        asked.reset()

    async with upstream(half_a_call) as up, gateway(store, up.url) as kept:
        await kept.ask(user("Look"), stream=True, x_quire_conversation="c")
        reply = (await store.entry("c", 2)).message
        assert [part.id for part in reply.tool_calls] == ["c0"]


async def test_the_end_of_a_stream_comes_after_its_reply_is_in_the_log(store: SqlStore):
    async with upstream(says("One two")) as up, gateway(store, up.url) as kept:
        body = {"model": "gpt-4o", "messages": [user("Count")], "stream": True}
        headers = {"x-quire-conversation": "c"}
        seen = b""
        async with kept.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            async for chunk in answer.aiter_bytes():
                seen += chunk
                if b'"finish_reason": "stop"' in seen or b"[DONE]" in seen:
                    assert await kept.said("c") == [("user", "Count"), ("assistant", "One two")]
        assert b"[DONE]" in seen


async def test_what_had_come_is_kept_when_the_client_goes_and_the_upstream_is_let_go(store: SqlStore):
    let_go = asyncio.Event()

    async def goes_on_and_on(asked: Asked) -> None:
        await asked.begin_events()
        await asked.events(event("Once"), event(" upon"))
        await asked.until_closed()
        let_go.set()

    async with upstream(goes_on_and_on) as up, gateway(store, up.url, patience=60) as kept:
        body = {"model": "gpt-4o", "messages": [user("Tell")], "stream": True}
        headers = {"x-quire-conversation": "c"}
        async with kept.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            seen = b""
            async for chunk in answer.aiter_bytes():
                seen += chunk
                if b"upon" in seen:
                    break
        await asyncio.wait_for(let_go.wait(), 10)
        await _until_kept(kept, "c", 2)
        assert await kept.said("c") == [("user", "Tell"), ("assistant", "Once upon")]
        assert (await store.entry("c", 2)).notes.unfinished


@pytest.mark.parametrize("stream", [False, True])
async def test_the_upstream_is_let_go_when_the_client_does_not_wait_for_the_first_word(store: SqlStore, stream: bool):
    asked_for, let_go = asyncio.Event(), asyncio.Event()

    async def waits(asked: Asked) -> None:
        asked_for.set()
        await asked.until_closed()
        let_go.set()

    async with upstream(waits) as up, gateway(store, up.url, patience=60) as kept:
        waiting = asyncio.ensure_future(kept.ask(user("Tell"), stream=stream))
        await asyncio.wait_for(asked_for.wait(), 10)
        waiting.cancel()
        await asyncio.wait_for(let_go.wait(), 10)
        assert await store.conversations() == []


async def _until_kept(kept: Gateway, conversation: str, count: int) -> None:
    async with asyncio.timeout(10):
        while True:
            if await kept.store.conversations() and len(await kept.said(conversation)) >= count:
                return
            await asyncio.sleep(0.02)


class Down:
    """A store that is away for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def for_(self, name: str, *, times: int | None = None) -> None:
        whole = getattr(SqlStore, name)
        left = [times]

        async def away(store: SqlStore, *args: object, **kwargs: object) -> object:
            if left[0] == 0:
                return await whole(store, *args, **kwargs)
            left[0] = None if left[0] is None else left[0] - 1
            raise StoreUnavailable

        self._patch.setattr(SqlStore, name, away)


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> Down:
    monkeypatch.setattr("quire.server.gateway.keeping.PAUSES", (0.01, 0.01))
    return Down(monkeypatch)


async def test_while_the_log_is_away_requests_are_refused_before_they_cost_anything(store: SqlStore, down: Down):
    async with upstream(says("a1")) as up, gateway(store, up.url) as kept:
        down.for_("recognise")
        answer = await kept.ask(user("Hello"))
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert answer.headers["retry-after"] == "1"
        assert up.asked == []


@pytest.mark.parametrize("stream", [False, True])
async def test_while_the_log_is_away_requests_pass_if_the_settings_say_so(store: SqlStore, down: Down, stream: bool):
    async with upstream(says("a1")) as up, gateway(store, up.url, store_down="pass") as kept:
        down.for_("recognise")
        answer = await kept.ask(user("Hello"), stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-quire-recorded"] == "no"
        assert "a1" in answer.text
        assert up.asked[0].body == {"model": "gpt-4o", "messages": [user("Hello")], "stream": stream}


async def test_a_log_that_comes_back_in_time_gets_the_reply(store: SqlStore, down: Down):
    async with upstream(says("a1")) as up, gateway(store, up.url) as kept:
        down.for_("record", times=2)
        answer = await kept.ask(user("Hello"))
        assert answer.status_code == 200
        assert await kept.said(answer.headers["x-quire-conversation"]) == [("user", "Hello"), ("assistant", "a1")]


async def test_a_reply_that_cannot_be_kept_is_not_acknowledged(store: SqlStore, down: Down):
    async with upstream(says("a1")) as up, gateway(store, up.url) as kept:
        down.for_("record")
        assert (await kept.ask(user("Hello"))).status_code == 503
        streamed = await kept.ask(user("Hello"), stream=True)
        assert b"[DONE]" not in streamed.content
        assert b'"finish_reason": "stop"' not in streamed.content
        assert b"store_unavailable" in streamed.content


async def test_a_reply_that_cannot_be_kept_is_given_all_the_same_if_the_settings_say_so(store: SqlStore, down: Down):
    async with upstream(says("a1")) as up, gateway(store, up.url, store_down="pass") as kept:
        down.for_("record")
        answer = await kept.ask(user("Hello"))
        assert (answer.status_code, answer.headers["x-quire-recorded"]) == (200, "no")
        assert (await kept.ask(user("Hello"), stream=True)).content.endswith(DONE)


async def test_after_a_reply_that_broke_off_a_client_may_ask_again_or_go_on(store: SqlStore):
    async with upstream(breaks_off, says("a2"), says("a3")) as up, gateway(store, up.url) as kept:
        await kept.ask(user("Tell"), stream=True, x_quire_conversation="c")
        again = await kept.ask(user("Tell"), x_quire_conversation="c")
        on = await kept.ask(user("Tell"), assistant("Once upon"), user("Go on"), x_quire_conversation="c")
        assert (again.headers["x-quire-branch"], on.headers["x-quire-branch"]) == ("1", "0")
        assert [text for _, text in await kept.said("c")] == ["Tell", "Once upon", "Go on", "a3"]
        assert [text for _, text in await kept.said("c", 1)] == ["Tell", "a2"]
