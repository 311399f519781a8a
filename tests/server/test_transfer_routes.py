"""Export and import over HTTP: identical bytes, all or nothing, errors that name their line."""

import json
import tracemalloc
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from openapi_helpers import assert_conforms
from server_helpers import assert_no_task_left

from infra.strategies import drafts
from quire.model import Compaction, Message, Pin, Span
from quire.server.routes import transfer
from quire.server.state import ServerState
from quire.store import SqlStore


async def fill_conversation(store: SqlStore, *, words: int = 30) -> None:
    """Fills the conversation with two branches, an image, a compaction and a pin."""
    digest = await store.put_blob(b"\x89PNG", media_type="image/png")
    image = Message.model_validate({"role": "user", "parts": [{"type": "image", "blob": digest}]})
    await store.append("c", *(Message.user(f"word {number} ü\u2028\x00") for number in range(words)), image)
    await store.append("c", Pin(message=words), Compaction(number=1, covers=Span(first=1, last=9), summary="words"))
    await store.fork("c", at=9, name="other")
    await store.append("c", Message.assistant("elsewhere"), branch=1)


@pytest.mark.every_database
async def test_an_export_taken_in_and_given_out_again_is_the_same(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    await fill_conversation(store)
    exported = await client.get(f"{conversation}/export")
    assert exported.status_code == 200
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    assert exported.headers["content-disposition"] == "attachment; filename*=UTF-8''c.jsonl"
    lines = exported.text.removesuffix("\n").split("\n")
    assert [json.loads(lines[0])["line"], json.loads(lines[-1])["line"]] == ["conversation", "end"]
    imported = await other_tenant_client.post("/api/import", content=exported.content)
    assert imported.status_code == 201, imported.text
    assert imported.json()["id"] == "c"
    assert (await other_tenant_client.get(f"{conversation}/export")).content == exported.content
    assert (await other_tenant_client.get(f"{conversation}/verify")).json() == {"faults": []}


@given(written=st.lists(drafts(), max_size=5))
@hypothesis_settings(max_examples=20)
async def test_whatever_was_recorded_can_be_exported_and_imported(
    written: list,
    client: httpx2.AsyncClient,
    other_tenant_client: httpx2.AsyncClient,
    store: SqlStore,
    server_state: ServerState,
):
    created = await store.create_conversation()
    await store.append(created.id, *written)
    exported = await client.get(f"/api/conversations/{created.id}/export")
    assert (await other_tenant_client.post("/api/import", content=exported.content)).status_code == 201
    assert (await other_tenant_client.get(f"/api/conversations/{created.id}/export")).content == exported.content


async def test_it_can_be_imported_under_another_id(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    await fill_conversation(store)
    exported = await client.get(f"{conversation}/export")
    again = await client.post("/api/import", content=exported.content)
    assert (again.status_code, again.json()["code"]) == (409, "conversation_exists")
    renamed = await client.post("/api/import", params={"as_id": "a copy/of it"}, content=exported.content)
    assert (renamed.status_code, renamed.json()["id"]) == (201, "a copy/of it")
    first = exported.text.splitlines()[0]
    copied = [line async for line in store.export_conversation("a copy/of it")]
    assert copied[0] == first.replace('"id":"c"', '"id":"a copy/of it"')
    assert "\n".join(copied[1:]) + "\n" == exported.text.split("\n", 1)[1]


async def import_error(client: httpx2.AsyncClient, lines: list[bytes]) -> str:
    """Returns the error for these lines, after checking that nothing was imported."""
    refused = await client.post("/api/import", params={"as_id": "x"}, content=b"\n".join(lines))
    assert (refused.status_code, refused.json()["code"]) == (400, "import_failed")
    assert (await client.get("/api/conversations/x")).status_code == 404
    return refused.json()["detail"]


async def test_what_is_wrong_is_named_by_its_line(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    await store.append("c", Message.user("first"), Message.user("second"))
    lines = (await client.get(f"{conversation}/export")).content.splitlines()
    index = next(index for index, line in enumerate(lines) if b"second" in line)
    changed = [*lines[:index], lines[index].replace(b"second", b"other"), *lines[index + 1 :]]
    assert f"Line {index + 1}:" in await import_error(client, changed)
    assert f"Line {index + 1}:" in await import_error(client, [*lines[:index], b"{no json", *lines[index:]])
    not_utf8 = [*lines[:index], b'"\xff"', *lines[index:]]
    assert f"Line {index + 1} is not valid UTF-8" in await import_error(client, not_utf8)
    assert "Line 1:" in await import_error(client, lines[1:])
    assert "is incomplete" in await import_error(client, lines[:-1])
    assert "must begin with the line" in await import_error(client, [b""])


async def test_more_than_the_server_reads_is_refused_before_it_is_read(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str, server_state: ServerState
):
    await fill_conversation(store)
    exported = await client.get(f"{conversation}/export")
    await server_state.change_settings({"max_request_bytes": 1_000})

    async def chunks():
        for start in range(0, len(exported.content), 100):
            yield exported.content[start : start + 100]

    for body in (exported.content, chunks()):
        refused = await client.post("/api/import", params={"as_id": "x"}, content=body)
        assert (refused.status_code, refused.json()["code"]) == (413, "request_too_large")
    assert (await client.get("/api/conversations/x")).status_code == 404


async def test_a_large_body_waits_in_a_file_and_not_in_memory(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transfer, "MAX_IMPORT_MEMORY_BYTES", 10)
    await fill_conversation(store)
    exported = await client.get(f"{conversation}/export")
    imported = await client.post("/api/import", params={"as_id": "x"}, content=exported.content)
    assert imported.status_code == 201


@pytest.mark.every_database
async def test_a_long_export_is_given_out_piece_by_piece(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", *(Message.user("word " * 2_000) for _ in range(300)))
    lines = (f"{line}\n" async for line in store.export_conversation("c"))
    source = transfer._batch_texts(lines)  # pyright: ignore[reportPrivateUsage]
    tracemalloc.start()
    sizes = [len(chunk) async for chunk in source]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(sizes) > 10
    assert max(sizes) < 2 * transfer.EXPORT_CHUNK_BYTES
    assert sum(sizes) == len((await client.get(f"{conversation}/export")).content) > 3_000_000
    assert peak < 30_000_000


async def test_disconnecting_during_an_export_leaks_no_task(
    live_client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    await store.append("c", *(Message.user("word " * 2_000) for _ in range(600)))
    async with assert_no_task_left(), live_client.stream("GET", f"{conversation}/export") as response:
        async for _ in response.aiter_bytes():
            break
    assert (await live_client.get(f"{conversation}/entries", params={"limit": 1})).status_code == 200


async def test_what_is_not_there_cannot_be_exported(client: httpx2.AsyncClient):
    missing = await client.get("/api/conversations/nowhere/export")
    assert (missing.status_code, missing.json()["code"]) == (404, "conversation_not_found")


JSON_VALUES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.sampled_from(["", "zz", "\x00", "c", [], {}, 1.5])
)


def tamper(data: st.DataObject, lines: list[str]) -> list[str]:
    """Changes a value in one line, or repeats, drops or moves the line."""
    index = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["value", "value", "value", "twice", "dropped", "moved"])):
        case "twice":
            return [*lines[: index + 1], *lines[index:]]
        case "dropped":
            return [*lines[:index], *lines[index + 1 :]]
        case "moved":
            return [*lines[:index], *lines[index + 1 :], lines[index]]
        case _:
            line = json.loads(lines[index])
            spot = line
            while True:
                key = data.draw(st.sampled_from(list(spot) if isinstance(spot, dict) else list(range(len(spot)))))
                if not spot[key] or not isinstance(spot[key], dict | list) or data.draw(st.booleans()):
                    break
                spot = spot[key]
            spot[key] = data.draw(JSON_VALUES)
            return [*lines[:index], json.dumps(line), *lines[index + 1 :]]


@given(data=st.data())
@hypothesis_settings(max_examples=60)
async def test_no_export_however_broken_is_a_fault_of_the_server_s(
    data: st.DataObject,
    client: httpx2.AsyncClient,
    other_tenant_client: httpx2.AsyncClient,
    store: SqlStore,
    server_state: ServerState,
):
    source, copy = (await store.create_conversation()).id, (await store.create_conversation()).id
    await store.append(source, Message.user("a"), Message.assistant("b"), Pin(message=1))
    await store.append(source, Compaction(number=1, covers=Span(first=1, last=2), summary="ab"))
    await store.fork(source, at=1)
    talk = await server_state.engine_for("default").conversation(source, branch=1)
    request = await talk.prepare("c")
    await talk.record("d", request=request)
    lines = tamper(data, [line async for line in store.export_conversation(source)])
    as_id = data.draw(st.sampled_from([None, copy]))
    answer = await other_tenant_client.post(
        "/api/import", params={"as_id": as_id} if as_id else {}, content="\n".join(lines)
    )
    assert answer.status_code in (201, 400), answer.text
    if answer.status_code == 201:
        path = f"/api/conversations/{quote(answer.json()['id'], safe='')}"
        assert (await other_tenant_client.get(f"{path}/verify")).json() == {"faults": []}
        entries = await other_tenant_client.get(f"{path}/entries")
        assert_conforms(entries.json(), schema="EntryPage")
