"""Routes for entries: nothing is missing, pages fit together, recorded messages read back unchanged."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from openapi_helpers import assert_conforms

from infra.strategies import messages
from quire.model import Compaction, ContextChange, ContextItem, Draft, EntryKind, Message, Pin, Restore, Span, Unpin
from quire.model.entry_metadata import DocumentReference, TokenCount, Usage
from quire.server import sized_responses
from quire.server.state import ServerState
from quire.store import SqlStore

KINDS: list[EntryKind] = ["message", "compaction", "restore", "pin", "unpin", "context_change"]


def fits_json(message: Message) -> bool:
    """Whether JSON can represent all of its numbers."""
    return "Infinity" not in message.canonical_json()


async def get_entries(client: httpx2.AsyncClient, conversation: str, **params: Any) -> dict[str, Any]:
    answer = await client.get(f"{conversation}/entries", params=params)
    assert answer.status_code == 200, answer.text
    assert_conforms(answer.json(), schema="EntryPage")
    return answer.json()


async def fill_conversation(store: SqlStore, *, words: int = 7) -> None:
    """Appends messages with an entry of every other kind between them."""
    await store.append("c", *(Message.user(f"word {number}") for number in range(1, words + 1)))
    covers = Span(first=1, last=3)
    await store.append("c", Compaction(number=1, covers=covers, summary="words", tokens_before=9, tokens_after=2))
    await store.append("c", Message.assistant("after"), Pin(message=2), Unpin(message=2))
    await store.append("c", ContextChange(action="add", item=ContextItem(type="rule", name="tone")))
    await store.append("c", Restore(compaction=words + 1), Message.user("last"))


async def test_every_kind_of_entry_has_its_own_body(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    await fill_conversation(store)
    page = await get_entries(client, conversation)
    bodies = {entry["kind"]: entry["body"] for entry in page["items"]}
    assert set(bodies) == set(KINDS)
    assert bodies["compaction"]["summary"] == "words"
    assert bodies["compaction"]["covers"] == {"first": 1, "last": 3}
    assert bodies["restore"] == {"compaction": 8}
    assert bodies["unpin"] == bodies["pin"] == {"message": 2}
    assert bodies["context_change"]["item"] == {"type": "rule", "name": "tone", "server": None}
    assert [entry["role"] for entry in page["items"]][6:9] == ["user", None, "assistant"]
    assert page["head"] == len(page["items"]) == 14
    assert page["has_more"] is False


async def test_an_entry_has_all_its_fields(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    usage = Usage(model="m", input_tokens=3, output_tokens=4)
    draft = Draft(
        body=Message.assistant("hello", name="Ada"),
        tokens=TokenCount(5, "messages:estimate"),
        references=(DocumentReference(link="[[a]]", path="a.md"),),
        usage=usage,
        created_at=1_700_000_000_000_000,
        incomplete=True,
    )
    await store.append("c", draft)
    answer = await client.get(f"{conversation}/entries/1")
    assert answer.status_code == 200
    reference = dict.fromkeys(("summary", "snippet", "blob", "injected"))
    assert answer.json() == {
        "seq": 1,
        "branch": 0,
        "kind": "message",
        "role": "assistant",
        "author": "assistant",
        "created_at": 1_700_000_000_000_000,
        "tokens": 5,
        "written_tokens": 5,
        "estimated": True,
        "references": [reference | {"link": "[[a]]", "path": "a.md", "kind": "direct"}],
        "usage": usage.model_dump(),
        "incomplete": True,
        "turn": None,
        "purged": False,
        "body": {
            "role": "assistant",
            "parts": [{"provider_fields": None, "type": "text", "text": "hello"}],
            "provider_fields": None,
            "name": "Ada",
        },
    }


@given(data=st.data())
@hypothesis_settings(max_examples=10)
async def test_pages_from_either_end_give_the_whole(
    data: st.DataObject, client: httpx2.AsyncClient, store: SqlStore, server_state: ServerState
):
    conversation = (await store.create_conversation()).id
    count = data.draw(st.integers(0, 12))
    drawn = [data.draw(st.sampled_from([Message.user("x"), Message.assistant("y"), "pin"])) for _ in range(count)]
    bodies = [Message.user("first"), *(Pin(message=1) if body == "pin" else body for body in drawn)]
    written = await store.append(conversation, *bodies)
    kinds = data.draw(st.none() | st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True))
    limit, newest = data.draw(st.integers(1, 5)), data.draw(st.booleans())
    expected = [entry.seq for entry in written if kinds is None or entry.kind in kinds]

    seqs: list[int] = []
    position: dict[str, int] = {}
    more = True
    while more:
        params = {"limit": limit, "newest": newest, **position, **({"kinds": kinds} if kinds else {})}
        page = await get_entries(client, f"/api/conversations/{conversation}", **params)
        numbers = [entry["seq"] for entry in page["items"]]
        assert len(numbers) == limit or not page["has_more"]
        assert page["head"] == len(written)
        more = page["has_more"]
        seqs = numbers + seqs if newest else seqs + numbers
        if more:
            position = {"last": numbers[0] - 1} if newest else {"first": numbers[-1] + 1}
    assert seqs == expected


async def test_a_stretch_is_read_from_its_first_to_its_last(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    await fill_conversation(store)
    for newest in (False, True):
        page = await get_entries(client, conversation, first=3, last=5, newest=newest)
        assert [entry["seq"] for entry in page["items"]] == [3, 4, 5]
        assert page["has_more"] is False
    assert (await get_entries(client, conversation, first=5, last=3))["items"] == []
    assert (await get_entries(client, conversation, first=99))["items"] == []


async def test_the_state_says_what_is_archived_and_pinned(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", Message.user("a"), Message.user("b"), Pin(message=2))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=2), summary="ab"))
    state = (await get_entries(client, conversation))["state"]
    assert state["pins"] == [2]
    assert state["active_compaction"] == {
        "seq": 4,
        "number": 1,
        "covers": {"first": 1, "last": 2},
        "question": None,
        "preserved": None,
        "cleared_through": None,
        "supersedes": None,
    }


async def test_a_branch_includes_the_entries_of_its_parent(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", Message.user("a"), Message.assistant("b"))
    await store.fork("c", at=1)
    await store.append("c", Message.assistant("other"), branch=1)
    page = await get_entries(client, conversation, branch=1)
    assert [(entry["branch"], entry["seq"]) for entry in page["items"]] == [(0, 1), (1, 2)]
    missing = await client.get(f"{conversation}/entries", params={"branch": 2})
    assert (missing.status_code, missing.json()["code"]) == (404, "branch_not_found")


async def test_an_entry_that_is_not_there_is_a_problem_that_says_so(client: httpx2.AsyncClient, conversation: str):
    answer = await client.get(f"{conversation}/entries/1")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "Branch 0 has the entries 1 to 0; there is no #1.",
        "code": "entry_not_found",
    }


async def test_purging_one_removes_what_it_said_and_leaves_its_number(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", Message.user("the secret"), Message.assistant("noted"), Pin(message=1))
    assert (await client.delete(f"{conversation}/entries/1")).status_code == 204
    page = await get_entries(client, conversation)
    assert "secret" not in str(page)
    assert [entry["purged"] for entry in page["items"]] == [True, False, False]
    assert await store.verify_conversation("c") == []
    refused = await client.delete(f"{conversation}/entries/3")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_entry")


@given(
    sent=st.lists(
        messages().filter(fits_json) | st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=4
    )
)
@hypothesis_settings(max_examples=12)
async def test_any_recorded_message_reads_back_unchanged(
    sent: list[Message | str], client: httpx2.AsyncClient, store: SqlStore, server_state: ServerState
):
    conversation = (await store.create_conversation()).id
    payload = [each if isinstance(each, str) else each.model_dump(mode="json") for each in sent]
    answer = await client.post(f"/api/conversations/{conversation}/messages", json={"messages": payload})
    assert answer.status_code == 201, answer.text
    expected = [Message.user(each) if isinstance(each, str) else each for each in sent]
    page = await get_entries(client, f"/api/conversations/{conversation}")
    assert [Message.model_validate(entry["body"]) for entry in page["items"]] == expected
    assert answer.json()["items"] == page["items"]
    assert all(entry["tokens"] is not None for entry in page["items"])


@pytest.mark.every_database
async def test_messages_are_recorded_all_or_none(client: httpx2.AsyncClient, conversation: str):
    image = {"role": "user", "parts": [{"type": "image", "blob": "0" * 64}]}
    refused = await client.post(f"{conversation}/messages", json={"messages": ["one", image]})
    assert (refused.status_code, refused.json()["code"]) == (404, "blob_not_found")
    assert (await get_entries(client, conversation))["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "stranger", "parts": []}]},
        {"messages": [{"role": "user", "parts": [], "unknown": 1}]},
        {"messages": ["x"], "branch": -1},
        {"messages": "x"},
        {},
    ],
)
async def test_what_is_no_message_is_refused_by_name(
    body: dict[str, Any], client: httpx2.AsyncClient, conversation: str
):
    refused = await client.post(f"{conversation}/messages", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert refused.json()["errors"]


@pytest.mark.every_database
async def test_messages_retried_after_the_same_entry_are_recorded_once(client: httpx2.AsyncClient, conversation: str):
    first = {"messages": ["a", "b"], "after": 0}
    answers = [(await client.post(f"{conversation}/messages", json=first)).json() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    next_ = await client.post(f"{conversation}/messages", json={"messages": ["c"], "after": 2})
    assert [entry["seq"] for entry in next_.json()["items"]] == [3]
    stale = await client.post(f"{conversation}/messages", json={"messages": ["d"], "after": 2})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_head")
    assert (await get_entries(client, conversation))["head"] == 3


async def test_what_json_cannot_say_is_never_said(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    """Provider fields may hold such numbers; a response that no browser can parse would hide all other entries."""
    await store.append(
        "c", Message(role="user", parts=(), provider_fields={"score": float("nan"), "most": float("inf")})
    )
    answer = await client.get(f"{conversation}/entries")
    assert answer.status_code == 200

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    [entry] = json.loads(answer.text, parse_constant=refuse)["items"]
    assert entry["body"]["provider_fields"] == {"score": None, "most": None}


async def test_a_long_page_is_the_same_json_as_a_short_one(
    client: httpx2.AsyncClient, conversation: str, monkeypatch: pytest.MonkeyPatch
):
    """It is encoded in a worker thread."""
    await client.post(f"{conversation}/messages", json={"messages": ['one \u2028 "mill"', "two mills"]})
    await client.post(f"{conversation}/pins", json={"seq": 1})
    paths = [f"{conversation}/entries", f"{conversation}/entries/1", "/api/search?query=mill"]
    short = [await client.get(path) for path in paths]
    monkeypatch.setattr(sized_responses, "MAX_EVENT_LOOP_BYTES", 0)
    for path, response in zip(paths, short, strict=True):
        long = await client.get(path)
        assert (long.json(), long.headers["content-type"]) == (response.json(), response.headers["content-type"])
