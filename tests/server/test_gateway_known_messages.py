"""The cache of known messages: the same result as parsing the whole list, and no message of another tenant."""

import gc
import json
import tracemalloc
from hashlib import sha256
from typing import Any

import pytest
from gateway_fixtures import assistant_message, run_gateway, system_message, user_message
from hypothesis import given
from hypothesis import strategies as st

from fake_upstream import respond_with_text, run_fake_upstream
from quire.proxy import known_messages
from quire.proxy.known_messages import MIN_CHANGING_ITEMS, MIN_LIST_BYTES, KnownMessageCache
from quire.store import SqlStore
from quire.wire.client_messages import compute_client_paths
from quire.wire.codec import MAX_REQUEST_MESSAGES, ClientRequest, Codec, RequestLimitExceeded, UnreadableBody
from quire.wire.codecs import CHAT, MESSAGES, RESPONSES

LONG_TEXT = "x" * MIN_LIST_BYTES
"""Makes any body long enough for the cache."""


def parse(cache: KnownMessageCache, items: list[Any], *, codec: Codec = CHAT, tenant: str = "a") -> ClientRequest:
    return parse_raw(cache, json.dumps(make_body(items, codec)).encode(), codec=codec, tenant=tenant)


def parse_raw(cache: KnownMessageCache, raw: bytes, *, codec: Codec = CHAT, tenant: str = "a") -> ClientRequest:
    return cache.parse_request(codec, cache.parse_body(codec, raw, tenant=tenant), tenant=tenant)


def make_body(items: list[Any], codec: Codec = CHAT) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, codec.item_field: items, "metadata": {"x": LONG_TEXT}}


def describe(request: ClientRequest) -> tuple[Any, ...]:
    """Everything of a request that its messages decide."""
    known = request.known_start.paths
    paths = compute_client_paths(request.messages[len(known) :], known_paths=known)
    return request.instructions, [each.message for each in request.messages], paths, request.body, request.tools


def make_turns(count: int) -> list[dict[str, Any]]:
    """Turns that fill several blocks of a list."""
    texts = [f"{number} é€ " + f"{number}" * 200 for number in range(count)]
    return [make(text) for text in texts for make in (user_message, assistant_message)]


CHAT_ITEMS = [
    user_message("a"), user_message("b"), assistant_message("c"), assistant_message(" d "), system_message("s"),
    {"role": "tool", "tool_call_id": "1", "content": "result"}, {"role": "developer", "content": "e"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]},
]  # fmt: skip
MESSAGES_ITEMS = [
    user_message("a"), user_message("b"), user_message(""), assistant_message("c"), system_message("s"),
    {"role": "user", "content": [{"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": True}}]},
]  # fmt: skip


@pytest.mark.parametrize(("codec", "pool"), [(CHAT, CHAT_ITEMS), (MESSAGES, MESSAGES_ITEMS)], ids=["chat", "messages"])
@given(data=st.data())
def test_requests_are_parsed_as_without_the_cache(codec: Codec, pool: list[Any], data: st.DataObject):
    cache, items = KnownMessageCache(), make_turns(data.draw(st.sampled_from([0, 20])))
    for _ in range(4):
        kept_count = data.draw(st.integers(0, len(items)))
        items = [*items[:kept_count], *data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=12))]
        body = make_body(items, codec)
        expected = codec.parse_request(json.dumps(body).encode(), body)
        assert describe(parse(cache, items, codec=codec)) == describe(expected)


def test_known_messages_are_not_parsed_again():
    cache, items = KnownMessageCache(), [system_message("s"), *make_turns(20)]
    first = parse(cache, items)
    second = parse(cache, [*items, user_message("on"), assistant_message("yes"), user_message("more")])
    assert len(second.known_start.paths) >= 40 - MIN_CHANGING_ITEMS
    known_count = len(first.known_start.paths)
    assert known_count >= 40 - MIN_CHANGING_ITEMS - 2
    assert all(a is b for a, b in zip(first.messages[:known_count], second.messages, strict=False))


def test_a_changed_message_is_parsed_with_all_after_it():
    cache, items = KnownMessageCache(), make_turns(20)
    first = parse(cache, items)
    changed = [*items[:20], user_message("other"), *items[21:]]
    second = parse(cache, changed)
    assert second.messages[20].message.text == "other"
    assert not {id(each) for each in first.messages} & {id(each) for each in second.messages[20:]}


def test_instructions_after_known_messages_stay_in_their_place():
    cache, items = KnownMessageCache(), make_turns(20)
    first = parse(cache, items)
    known_count = len(first.known_start.paths)
    request = parse(cache, [*items[:known_count], system_message("s"), assistant_message("yes")])
    assert request.instructions == ()
    assert [each.message.role for each in request.messages[known_count:]] == ["system", "assistant"]


def test_a_tenant_gets_no_message_of_another():
    cache, items = KnownMessageCache(), make_turns(20)
    first, second = parse(cache, items, tenant="a"), parse(cache, items, tenant="b")
    assert not {id(each) for each in first.messages} & {id(each) for each in second.messages}


def test_items_of_responses_are_parsed_whole():
    items = [{"type": "message", **each} for each in make_turns(20)]
    assert parse(KnownMessageCache(), items, codec=RESPONSES).known_start.paths == ()


def test_an_error_counts_from_the_start_of_the_list():
    cache, items = KnownMessageCache(), make_turns(20)
    parse(cache, items)
    with pytest.raises(UnreadableBody, match="Message 40 "):
        parse(cache, [*items, {"role": "nobody"}])


def test_the_cache_is_bounded_by_the_size_of_its_lists(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_messages, "MAX_KNOWN_BYTES", 150_000)
    cache = KnownMessageCache()
    lists = [[user_message(f"{number}"), *make_turns(20)] for number in range(10)]
    parsed = [parse(cache, items).messages[0] for items in lists]
    is_known = [
        parse(cache, items).messages[0] is first for items, first in reversed([*zip(lists, parsed, strict=True)])
    ]
    assert is_known[0]
    assert not is_known[-1]
    too_long = make_turns(500)
    assert parse(cache, too_long).messages[0] is not parse(cache, too_long).messages[0]


def test_lists_of_tiny_messages_take_no_more_memory_than_the_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_messages, "MAX_KNOWN_BYTES", 1_000_000)
    cache = KnownMessageCache()
    parse(cache, make_turns(20))
    tracemalloc.start()
    try:
        for number in range(50):
            parse(cache, [user_message(f"{number}"), assistant_message("a")] * 300)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2_000_000


@pytest.mark.parametrize("is_before", [False, True], ids=["after", "before"])
def test_other_fields_may_change(is_before: bool):
    """Fields before the list are part of its digest: after another one the messages are parsed again."""
    cache, items = KnownMessageCache(), make_turns(20)
    first = parse(cache, items)
    body, changed = make_body([*items, user_message("more")]), {"temperature": 0.5}
    raw = json.dumps({**changed, **body} if is_before else {**body, **changed}).encode()
    second = parse_raw(cache, raw)
    assert second.options.temperature == 0.5
    assert second.body == json.loads(raw)
    assert (first.messages[0] is second.messages[0]) is not is_before
    assert second.raw_digest == sha256(raw).hexdigest()


@pytest.mark.parametrize("position", ["before", "after"])
def test_a_second_list_takes_the_place_of_the_first(position: str):
    cache, items = KnownMessageCache(), make_turns(20)
    parse(cache, items)
    long_list, short_list = json.dumps(items), json.dumps([user_message("other")])
    lists = (short_list, long_list) if position == "before" else (long_list, short_list)
    fields = ",".join(f'"messages":{each}' for each in lists)
    raw = f'{{"model":"m",{fields},"x":"{LONG_TEXT}"}}'.encode()
    for _ in range(2):
        request = parse_raw(cache, raw)
        assert request.body == json.loads(raw)
        assert [each.message.text for each in request.messages] == [each["content"] for each in json.loads(lists[1])]


def test_equal_bytes_of_another_list_are_no_proof():
    """The same bytes within a text are not items."""
    cache, items = KnownMessageCache(), make_turns(20)
    parse(cache, items)
    raw = json.dumps({"model": "m", "note": json.dumps({"messages": items}), "messages": [user_message("a")]}).encode()
    assert [each.message.text for each in parse_raw(cache, raw).messages] == ["a"]


def test_the_rest_of_a_known_list_has_limits_too():
    cache, items = KnownMessageCache(), make_turns(20)
    parse(cache, items)
    with pytest.raises(RequestLimitExceeded, match="`name` of a message"):
        parse(cache, [*items, {**user_message("a"), "name": "n" * 300}])
    with pytest.raises(RequestLimitExceeded, match="items"):
        parse(cache, [*items, *[user_message("a")] * MAX_REQUEST_MESSAGES])
    with pytest.raises(UnreadableBody, match="not valid JSON"):
        parse_raw(cache, json.dumps(make_body(items)).encode()[:-2])


async def test_an_agents_turns_continue_its_conversation(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        items = [user_message(LONG_TEXT[:5_000] + str(number)) for number in range(1)]
        for turn in range(8):
            answer = await harness.ask(*items, user_message(f"{turn} " + LONG_TEXT), x_quire_conversation="c")
            assert answer.headers["x-quire-branch"] == "0"
            items += [user_message(f"{turn} " + LONG_TEXT), assistant_message("Yes.")]
        texts = [text for _, text in await harness.load_messages("c")]
        assert len(texts) == 17
        assert up.bodies[-1]["messages"][:-1] == items[:-2]
