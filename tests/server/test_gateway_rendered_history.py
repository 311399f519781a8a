"""Rendered histories: extended turn by turn, they equal a rendering of all messages, and the log is not read again."""

from typing import Any

import pytest
from gateway_fixtures import MODEL, run_gateway, user_message
from hypothesis import given
from hypothesis import strategies as st

from fake_upstream import respond_with_text, run_fake_upstream
from quire.engine import Engine, EngineConfig
from quire.model import Message, TextPart, ToolCallPart, ToolResultPart, iter_paths
from quire.proxy import rendered_history
from quire.proxy import replay_rendering as log_renderer
from quire.proxy.rendered_history import RenderedHistories, RenderedHistory
from quire.settings import Settings
from quire.store import SqlStore
from quire.view.batches import group_batches, repair_tool_calls
from quire.view.layout import RequestContents, lay_out
from quire.view.rendered import MessageCounter, RenderedMessage
from quire.wire import wire_format_for
from quire.wire.tokens import counter_for

COUNTER = MessageCounter(counter_for("gpt-4o"), wire_format_for("chat"))


def make_call(*ids: str) -> Message:
    return Message(role="assistant", parts=tuple(ToolCallPart(id=each, name="look", arguments="{}") for each in ids))


def make_result(call_id: str) -> Message:
    return Message(
        role="tool", parts=(ToolResultPart(call_id=call_id, content=(TextPart(text=f"result of {call_id}"),)),)
    )


MESSAGES = st.one_of(
    st.sampled_from([Message.user("a"), Message.assistant("b"), Message.assistant("c ")]),
    st.lists(st.sampled_from("123456"), min_size=1, max_size=2).map(lambda ids: make_call(*ids)),
    st.sampled_from("123456").map(make_result),
)


def render_all(messages: list[Message]) -> list[RenderedMessage]:
    return [COUNTER.render_message(each, tokens=0) for each in messages]


def lay_out_all(messages: list[RenderedMessage] | tuple[RenderedMessage, ...]) -> tuple[RenderedMessage, ...]:
    batches = group_batches(repair_tool_calls(messages, COUNTER).messages)
    contents = RequestContents(system=None, tools=(), batches={"history": batches})
    return lay_out(contents, COUNTER, model=MODEL, tokens=0).messages


@given(turns=st.lists(st.lists(MESSAGES, min_size=1, max_size=4), min_size=1, max_size=6))
def test_an_extended_history_is_that_of_all_messages(turns: list[list[Message]]):
    history: RenderedHistory | None = RenderedHistory()
    for messages in turns:
        start = history.paths[-1] if history.paths else bytes(32)
        paths = list(iter_paths([each.canonical_json().encode() for each in messages], start=start))
        history = history.extend(render_all(messages), paths, COUNTER)
        if history is None:
            # A repeated id renames calls, so that the caller renders everything.
            return
    open_part = lay_out_all(history.open_batch)
    if history.call_ids.isdisjoint(rendered_history.list_call_ids(open_part)):
        everything = lay_out_all(render_all([each for messages in turns for each in messages]))
        assert [each.encoded for each in (*history.laid_out, *open_part)] == [each.encoded for each in everything]
    assert len(history.paths) == sum(map(len, turns))
    if history.is_unchanged:
        assert len(history.laid_out) + len(history.open_batch) == len(history.paths)


def test_the_cache_is_bounded_by_the_size_of_its_histories(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendered_history, "MAX_HISTORY_BYTES", 3_000)
    cache = RenderedHistories()
    for number in range(10):
        history = RenderedHistory().extend(render_all([Message.user("a")]), [bytes([number])], COUNTER)
        assert history is not None
        cache.replace("t", "chat", b"", history)
    found = [cache.find("t", "chat", bytes([number])) is not None for number in range(10)]
    assert found == [False] * 5 + [True] * 5
    assert cache.find("other", "chat", bytes([9])) is None
    assert cache.find("t", "messages", bytes([9])) is None
    long_history = RenderedHistory().extend(render_all([Message.user("a" * 1_000)]), [b"long"], COUNTER)
    assert long_history is not None
    cache.replace("t", "chat", b"", long_history)
    assert cache.find("t", "chat", b"long") is None
    assert cache.find("t", "chat", bytes([9])) is not None


async def test_turns_whose_replies_clients_change_read_no_message_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    """The log has the reply with its space at the end, by which its path differs from the client's."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
    replies = [
        respond_with_text("Waves. "),
        respond_with_text({"content": None, "tool_calls": [call]}, finish="tool_calls"),
        respond_with_text("More waves.\n"),
        respond_with_text("Yes."),
    ]
    questions: list[dict[str, Any]] = [
        user_message("Look"),
        user_message("Again"),
        {"role": "tool", "tool_call_id": "1", "content": "waves"},
        user_message("Really?"),
    ]

    def read_nothing(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the log is read")

    monkeypatch.setattr(log_renderer, "_render_stored", read_nothing)
    async with run_fake_upstream(*replies) as up, run_gateway(store, up.url) as harness:
        history, requests = list[dict[str, Any]](), list[str]()
        for question in questions:
            history.append(question)
            answer = await harness.ask(*history)
            requests.append(answer.headers["x-quire-request"])
            history.append(answer.json()["choices"][0]["message"])
            assert answer.headers["x-quire-branch"] == "0"

        engine = Engine(store, EngineConfig.create(Settings(model=MODEL)))
        # A stored call belongs to the batch of its new result.
        for request_id, request, stable_messages in zip(requests, up.requests, (0, 2, 3, 6), strict=True):
            recorded = await store.get_request(request_id)
            replay = await (await engine.conversation(recorded.conversation)).replay(recorded.seq)
            assert replay.matches
            assert replay.rendered is not None
            assert replay.rendered.to_payload()["messages"] == request.body["messages"]
            assert recorded.manifest.forwarded is not None
            assert recorded.manifest.forwarded.replayable
            assert recorded.manifest.stable_messages == stable_messages
