"""The transcript over HTTP: nothing is missing, pages fit together, what is kept reads back as it was."""

import json
from typing import Any

import httpx
import pytest
from contract_document import conforms
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from quire.log import SqlStore
from quire.model import Compaction, ContextChange, ContextItem, Draft, EntryKind, Message, Pin, Restore, Span, Unpin
from quire.model.notes import DocumentReference, TokenCount, Usage
from quire.server.serving import Serving
from quire.testing.strategies import messages

KINDS: list[EntryKind] = ["message", "compaction", "restore", "pin", "unpin", "context_change"]


def in_json(message: Message) -> bool:
    """Whether JSON has words for all of its numbers."""
    return "Infinity" not in message.canonical()


async def entries(client: httpx.AsyncClient, conversation: str, **asked: Any) -> dict[str, Any]:
    answer = await client.get(f"{conversation}/entries", params=asked)
    assert answer.status_code == 200, answer.text
    conforms(answer.json(), to="Entries")
    return answer.json()


async def fill(store: SqlStore, *, words: int = 7) -> None:
    """Messages with an entry of every other kind between them."""
    await store.append("c", *(Message.user(f"word {number}") for number in range(1, words + 1)))
    covers = Span(first=1, last=3)
    await store.append("c", Compaction(number=1, covers=covers, summary="words", tokens_before=9, tokens_after=2))
    await store.append("c", Message.assistant("after"), Pin(message=2), Unpin(message=2))
    await store.append("c", ContextChange(action="add", item=ContextItem(type="rule", name="tone")))
    await store.append("c", Restore(compaction=words + 1), Message.user("last"))


async def test_every_kind_of_entry_is_shown_with_its_own_body(
    client: httpx.AsyncClient, store: SqlStore, conversation: str
):
    await fill(store)
    shown = await entries(client, conversation)
    bodies = {entry["kind"]: entry["body"] for entry in shown["items"]}
    assert set(bodies) == set(KINDS)
    assert bodies["compaction"]["summary"] == "words"
    assert bodies["compaction"]["covers"] == {"first": 1, "last": 3}
    assert bodies["restore"] == {"compaction": 8}
    assert bodies["unpin"] == bodies["pin"] == {"message": 2}
    assert bodies["context_change"]["item"] == {"type": "rule", "name": "tone", "server": None}
    assert [entry["role"] for entry in shown["items"]][6:9] == ["user", None, "assistant"]
    assert shown["head"] == len(shown["items"]) == 14
    assert shown["more"] is False


async def test_all_that_is_known_of_an_entry_is_shown(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    usage = Usage(model="m", input_tokens=3, output_tokens=4)
    draft = Draft(
        body=Message.assistant("hello", name="Ada"),
        tokens=TokenCount(5, "estimate"),
        references=(DocumentReference(link="[[a]]", path="a.md"),),
        usage=usage,
        at=1_700_000_000_000_000,
        unfinished=True,
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
        "at": 1_700_000_000_000_000,
        "tokens": 5,
        "estimated": True,
        "references": [reference | {"link": "[[a]]", "path": "a.md", "kind": "direct"}],
        "usage": usage.model_dump(),
        "unfinished": True,
        "purged": False,
        "body": {
            "role": "assistant",
            "parts": [{"provider": None, "type": "text", "text": "hello"}],
            "provider": None,
            "name": "Ada",
        },
    }


@given(data=st.data())
@hypothesis_settings(max_examples=25)
async def test_pages_from_either_end_give_the_whole(
    data: st.DataObject, client: httpx.AsyncClient, store: SqlStore, serving: Serving
):
    conversation = (await store.create_conversation()).id
    count = data.draw(st.integers(0, 12))
    drawn = [data.draw(st.sampled_from([Message.user("x"), Message.assistant("y"), "pin"])) for _ in range(count)]
    bodies = [Message.user("first"), *(Pin(message=1) if body == "pin" else body for body in drawn)]
    written = await store.append(conversation, *bodies)
    kinds = data.draw(st.none() | st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True))
    limit, newest = data.draw(st.integers(1, 5)), data.draw(st.booleans())
    expected = [entry.seq for entry in written if kinds is None or entry.kind in kinds]

    found: list[int] = []
    place: dict[str, int] = {}
    more = True
    while more:
        asked = {"limit": limit, "newest": newest, **place, **({"kinds": kinds} if kinds else {})}
        page = await entries(client, f"/api/conversations/{conversation}", **asked)
        numbers = [entry["seq"] for entry in page["items"]]
        assert len(numbers) == limit or not page["more"]
        assert page["head"] == len(written)
        more = page["more"]
        found = numbers + found if newest else found + numbers
        if more:
            place = {"last": numbers[0] - 1} if newest else {"first": numbers[-1] + 1}
    assert found == expected


async def test_a_stretch_is_read_from_its_first_to_its_last(
    client: httpx.AsyncClient, store: SqlStore, conversation: str
):
    await fill(store)
    for newest in (False, True):
        page = await entries(client, conversation, first=3, last=5, newest=newest)
        assert [entry["seq"] for entry in page["items"]] == [3, 4, 5]
        assert page["more"] is False
    assert (await entries(client, conversation, first=5, last=3))["items"] == []
    assert (await entries(client, conversation, first=99))["items"] == []


async def test_the_state_says_what_is_archived_and_pinned(
    client: httpx.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", Message.user("a"), Message.user("b"), Pin(message=2))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=2), summary="ab"))
    state = (await entries(client, conversation))["state"]
    assert state["pins"] == [2]
    assert state["active"] == {"seq": 4, "number": 1, "covers": {"first": 1, "last": 2}, "beneath": None}


async def test_a_branch_shows_what_it_goes_on_from(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    await store.append("c", Message.user("a"), Message.assistant("b"))
    await store.fork("c", at=1)
    await store.append("c", Message.assistant("other"), branch=1)
    shown = await entries(client, conversation, branch=1)
    assert [(entry["branch"], entry["seq"]) for entry in shown["items"]] == [(0, 1), (1, 2)]
    missing = await client.get(f"{conversation}/entries", params={"branch": 2})
    assert (missing.status_code, missing.json()["code"]) == (404, "branch_not_found")


async def test_an_entry_that_is_not_there_is_a_problem_that_says_so(client: httpx.AsyncClient, conversation: str):
    answer = await client.get(f"{conversation}/entries/1")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "Branch 0 runs from entry 1 to 0; there is no #1.",
        "code": "entry_not_found",
    }


async def test_purging_one_removes_what_it_said_and_leaves_its_number(
    client: httpx.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", Message.user("the secret"), Message.assistant("noted"), Pin(message=1))
    assert (await client.delete(f"{conversation}/entries/1")).status_code == 204
    shown = await entries(client, conversation)
    assert "secret" not in str(shown)
    assert [entry["purged"] for entry in shown["items"]] == [True, False, False]
    assert await store.verify("c") == []
    refused = await client.delete(f"{conversation}/entries/3")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_entry")


@given(
    kept=st.lists(
        messages().filter(in_json) | st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=4
    )
)
@hypothesis_settings(max_examples=30)
async def test_any_message_that_is_kept_reads_back_as_it_was(
    kept: list[Message | str], client: httpx.AsyncClient, store: SqlStore, serving: Serving
):
    conversation = (await store.create_conversation()).id
    given_ = [each if isinstance(each, str) else each.model_dump(mode="json") for each in kept]
    answer = await client.post(f"/api/conversations/{conversation}/messages", json={"messages": given_})
    assert answer.status_code == 201, answer.text
    expected = [Message.user(each) if isinstance(each, str) else each for each in kept]
    shown = await entries(client, f"/api/conversations/{conversation}")
    assert [Message.model_validate(entry["body"]) for entry in shown["items"]] == expected
    assert answer.json()["items"] == shown["items"]
    assert all(entry["tokens"] is not None for entry in shown["items"])


async def test_messages_are_kept_all_or_none(client: httpx.AsyncClient, conversation: str):
    image = {"role": "user", "parts": [{"type": "image", "blob": "0" * 64}]}
    refused = await client.post(f"{conversation}/messages", json={"messages": ["one", image]})
    assert (refused.status_code, refused.json()["code"]) == (404, "blob_not_found")
    assert (await entries(client, conversation))["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "nobody", "parts": []}]},
        {"messages": [{"role": "user", "parts": [], "unknown": 1}]},
        {"messages": ["x"], "branch": -1},
        {"messages": "x"},
        {},
    ],
)
async def test_what_is_no_message_is_refused_by_name(
    body: dict[str, Any], client: httpx.AsyncClient, conversation: str
):
    refused = await client.post(f"{conversation}/messages", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert refused.json()["faults"]


async def test_messages_sent_again_after_the_same_entry_are_kept_once(client: httpx.AsyncClient, conversation: str):
    first = {"messages": ["a", "b"], "after": 0}
    kept = [(await client.post(f"{conversation}/messages", json=first)).json() for _ in range(3)]
    assert kept[0] == kept[1] == kept[2]
    next_ = await client.post(f"{conversation}/messages", json={"messages": ["c"], "after": 2})
    assert [entry["seq"] for entry in next_.json()["items"]] == [3]
    stale = await client.post(f"{conversation}/messages", json={"messages": ["d"], "after": 2})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_head")
    assert (await entries(client, conversation))["head"] == 3


async def test_what_json_cannot_say_is_never_said(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    """A provider's own fields may hold such numbers; an answer that no browser reads would hide all the others."""
    await store.append("c", Message(role="user", parts=(), provider={"score": float("nan"), "most": float("inf")}))
    answer = await client.get(f"{conversation}/entries")
    assert answer.status_code == 200

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    [entry] = json.loads(answer.text, parse_constant=refuse)["items"]
    assert entry["body"]["provider"] == {"score": None, "most": None}
