"""Conversations out and in over HTTP: the same bytes again, all or nothing, and errors that name their line."""

import json
import tracemalloc
from urllib.parse import quote

import httpx
import pytest
from calling import no_task_left
from contract_document import conforms
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from quire.log import SqlStore
from quire.model import Compaction, Message, Pin, Span
from quire.server.routes import transfer
from quire.server.serving import Serving
from quire.testing.strategies import drafts


async def fill(store: SqlStore, *, words: int = 30) -> None:
    """Two branches, a picture, a compaction, a pin."""
    digest = await store.put_blob(b"\x89PNG", media_type="image/png")
    image = Message.model_validate({"role": "user", "parts": [{"type": "image", "blob": digest}]})
    await store.append("c", *(Message.user(f"word {number} ü\u2028\x00") for number in range(words)), image)
    await store.append("c", Pin(message=words), Compaction(number=1, covers=Span(first=1, last=9), summary="words"))
    await store.fork("c", at=9, name="other")
    await store.append("c", Message.assistant("elsewhere"), branch=1)


async def test_an_export_taken_in_and_given_out_again_is_the_same(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, store: SqlStore, conversation: str
):
    await fill(store)
    out = await client.get(f"{conversation}/export")
    assert out.status_code == 200
    assert out.headers["content-type"].startswith("application/x-ndjson")
    assert out.headers["content-disposition"] == "attachment; filename*=UTF-8''c.jsonl"
    lines = out.text.removesuffix("\n").split("\n")
    assert [json.loads(lines[0])["line"], json.loads(lines[-1])["line"]] == ["conversation", "end"]
    taken = await stranger.post("/api/import", content=out.content)
    assert taken.status_code == 201, taken.text
    assert taken.json()["id"] == "c"
    assert (await stranger.get(f"{conversation}/export")).content == out.content
    assert (await stranger.get(f"{conversation}/verify")).json() == {"faults": []}


@given(written=st.lists(drafts(), max_size=5))
@hypothesis_settings(max_examples=20)
async def test_whatever_was_kept_travels(
    written: list, client: httpx.AsyncClient, stranger: httpx.AsyncClient, store: SqlStore, serving: Serving
):
    made = await store.create_conversation()
    await store.append(made.id, *written)
    out = await client.get(f"/api/conversations/{made.id}/export")
    assert (await stranger.post("/api/import", content=out.content)).status_code == 201
    assert (await stranger.get(f"/api/conversations/{made.id}/export")).content == out.content


async def test_it_can_be_kept_under_another_id(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    await fill(store)
    out = await client.get(f"{conversation}/export")
    again = await client.post("/api/import", content=out.content)
    assert (again.status_code, again.json()["code"]) == (409, "conversation_exists")
    renamed = await client.post("/api/import", params={"rename": "a copy/of it"}, content=out.content)
    assert (renamed.status_code, renamed.json()["id"]) == (201, "a copy/of it")
    first = out.text.splitlines()[0]
    copied = [line async for line in store.export("a copy/of it")]
    assert copied[0] == first.replace('"id":"c"', '"id":"a copy/of it"')
    assert "\n".join(copied[1:]) + "\n" == out.text.split("\n", 1)[1]


async def broken(client: httpx.AsyncClient, lines: list[bytes]) -> str:
    """Why these lines are refused; nothing of them is kept."""
    refused = await client.post("/api/import", params={"rename": "x"}, content=b"\n".join(lines))
    assert (refused.status_code, refused.json()["code"]) == (400, "import_failed")
    assert (await client.get("/api/conversations/x")).status_code == 404
    return refused.json()["detail"]


async def test_what_is_wrong_is_named_by_its_line(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    await store.append("c", Message.user("first"), Message.user("second"))
    lines = (await client.get(f"{conversation}/export")).content.splitlines()
    place = next(place for place, line in enumerate(lines) if b"second" in line)
    changed = [*lines[:place], lines[place].replace(b"second", b"other"), *lines[place + 1 :]]
    assert f"Line {place + 1}:" in await broken(client, changed)
    assert f"Line {place + 1}:" in await broken(client, [*lines[:place], b"{no json", *lines[place:]])
    assert f"Line {place + 1} is no text" in await broken(client, [*lines[:place], b'"\xff"', *lines[place:]])
    assert "Line 1:" in await broken(client, lines[1:])
    assert "breaks off" in await broken(client, lines[:-1])
    assert "begins with a line" in await broken(client, [b""])


async def test_more_than_the_server_reads_is_refused_before_it_is_read(
    client: httpx.AsyncClient, store: SqlStore, conversation: str, serving: Serving
):
    await fill(store)
    out = await client.get(f"{conversation}/export")
    await serving.change({"max_request_bytes": 1_000})

    async def pieces():
        for start in range(0, len(out.content), 100):
            yield out.content[start : start + 100]

    for body in (out.content, pieces()):
        refused = await client.post("/api/import", params={"rename": "x"}, content=body)
        assert (refused.status_code, refused.json()["code"]) == (413, "request_too_large")
    assert (await client.get("/api/conversations/x")).status_code == 404


async def test_a_large_body_waits_in_a_file_and_not_in_memory(
    client: httpx.AsyncClient, store: SqlStore, conversation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transfer, "IN_MEMORY", 10)
    await fill(store)
    out = await client.get(f"{conversation}/export")
    taken = await client.post("/api/import", params={"rename": "x"}, content=out.content)
    assert taken.status_code == 201


async def test_a_long_export_is_given_out_piece_by_piece(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    await store.append("c", *(Message.user("word " * 2_000) for _ in range(300)))
    source = transfer._in_chunks(store.export("c"))  # pyright: ignore[reportPrivateUsage]
    tracemalloc.start()
    sizes = [len(piece) async for piece in source]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(sizes) > 10
    assert max(sizes) < 2 * transfer.CHUNK
    assert sum(sizes) == len((await client.get(f"{conversation}/export")).content) > 3_000_000
    assert peak < 30_000_000


async def test_who_leaves_in_the_middle_of_an_export_leaves_nothing_behind(
    live: httpx.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", *(Message.user("word " * 2_000) for _ in range(600)))
    async with no_task_left(), live.stream("GET", f"{conversation}/export") as response:
        async for _ in response.aiter_bytes():
            break
    assert (await live.get(f"{conversation}/entries", params={"limit": 1})).status_code == 200


async def test_what_is_not_there_cannot_be_exported(client: httpx.AsyncClient):
    missing = await client.get("/api/conversations/nowhere/export")
    assert (missing.status_code, missing.json()["code"]) == (404, "conversation_not_found")


VALUES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.sampled_from(["", "zz", "\x00", "c", [], {}, 1.5])
)


def tampered(data: st.DataObject, lines: list[str]) -> list[str]:
    """The lines, one of them with another value somewhere, or given twice, or left out, or elsewhere."""
    place = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["value", "value", "value", "twice", "out", "moved"])):
        case "twice":
            return [*lines[: place + 1], *lines[place:]]
        case "out":
            return [*lines[:place], *lines[place + 1 :]]
        case "moved":
            return [*lines[:place], *lines[place + 1 :], lines[place]]
        case _:
            line = json.loads(lines[place])
            spot = line
            while True:
                key = data.draw(st.sampled_from(list(spot) if isinstance(spot, dict) else list(range(len(spot)))))
                if not spot[key] or not isinstance(spot[key], dict | list) or data.draw(st.booleans()):
                    break
                spot = spot[key]
            spot[key] = data.draw(VALUES)
            return [*lines[:place], json.dumps(line), *lines[place + 1 :]]


@given(data=st.data())
@hypothesis_settings(max_examples=60)
async def test_no_export_however_broken_is_a_fault_of_the_server_s(
    data: st.DataObject, client: httpx.AsyncClient, stranger: httpx.AsyncClient, store: SqlStore, serving: Serving
):
    source, copy = (await store.create_conversation()).id, (await store.create_conversation()).id
    await store.append(source, Message.user("a"), Message.assistant("b"), Pin(message=1))
    await store.append(source, Compaction(number=1, covers=Span(first=1, last=2), summary="ab"))
    await store.fork(source, at=1)
    talk = await serving.engine("default").conversation(source, branch=1)
    await talk.prepare("c")
    await talk.record("d")
    lines = tampered(data, [line async for line in store.export(source)])
    rename = data.draw(st.sampled_from([None, copy]))
    answer = await stranger.post("/api/import", params={"rename": rename} if rename else {}, content="\n".join(lines))
    assert answer.status_code in (201, 400), answer.text
    if answer.status_code == 201:
        path = f"/api/conversations/{quote(answer.json()['id'], safe='')}"
        assert (await stranger.get(f"{path}/verify")).json() == {"faults": []}
        shown = await stranger.get(f"{path}/entries")
        conforms(shown.json(), to="Entries")
