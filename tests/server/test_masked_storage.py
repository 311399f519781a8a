"""A tenant's secrets are masked in all that is stored, and the agent's traffic is not changed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from format_clients import FORMATS, run_matrix_gateway
from gateway_fixtures import MODEL, assistant_message, run_gateway, system_message, user_message

from fake_upstream import respond_with_text, run_fake_upstream
from infra.database_dump import contains_text, dump_database
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedReply, WireFormatName
from quire.engine import Engine, EngineConfig
from quire.errors import ImportFailed
from quire.model import FilePart, Message, TextPart
from quire.settings import Settings
from quire.settings.schema import TenantMasking
from quire.store import SqlStore
from secret_samples import SecretGenerator

MASKING = {"*": TenantMasking(patterns={"badge": r"ACME-[0-9A-F]{16}"})}


def make_canaries(count: int) -> list[str]:
    """Secrets of a known format and of the tenant's own pattern."""
    generator = SecretGenerator(7)
    known = [f"ghp_{generator.chars(36)}" for _ in range(count - count // 3)]
    return known + [f"ACME-{generator.chars(16, '0123456789ABCDEF')}" for _ in range(count // 3)]


@asynccontextmanager
async def open_masked(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(database_url, masking=MASKING) as store:
        yield store


async def find_stored(store: SqlStore, admin_url: str, canaries: list[str]) -> list[str]:
    """The canaries that are anywhere in the database, also in the compressed bodies of requests."""
    bodies = list[bytes]()
    for record in await store.list_conversations():
        for branch in await store.list_branches(record.id):
            seqs = [seq for seq, _ in await store.list_manifests(record.id, branch=branch.number)]
            bodies += (await store.get_request_bodies(record.id, seqs, branch=branch.number)).values()
    dump = b"\n".join([dump_database(admin_url), *bodies])
    # The public start of a secret may stay.
    return [each for each in canaries if contains_text(dump, each[5:])]


@pytest.mark.parametrize(
    ("client", "speaks"),
    [(one, two) for one in FORMATS for two in FORMATS if one == two or "gemini" not in (one, two)],
)
async def test_secrets_reach_the_model_and_are_not_stored(
    database_url: str, admin_url: str, client: WireFormatName, speaks: WireFormatName
):
    question, argument, result, answer, later = canaries = make_canaries(5)

    def reply(request: ProviderRequest) -> ScriptedReply:
        if request.newest_results:
            return ScriptedReply(f"Done with {answer}.")
        is_first = argument not in request.raw.decode()
        calls = (ScriptedCall("read", {"path": f"/{argument}/x"}),) if is_first else ()
        return ScriptedReply("Reading." if is_first else "Yes.", calls=calls)

    async with (
        open_masked(database_url) as store,
        run_matrix_gateway(store, reply, client=client, speaks=speaks) as harness,
    ):
        history = [harness.client.make_question(f"Deploy with {question} now.")]
        called = await harness.client.send(history, stream=False, has_tools=True)
        assert called.calls[0].arguments == {"path": f"/{argument}/x"}, "the agent gets the reply as it is"
        history += [*called.items, *harness.client.make_results(called.calls, [f"token: {result}"])]
        done = await harness.client.send(history, stream=True, has_tools=True)
        assert answer in done.text
        history += [*done.items, harness.client.make_question(f"And {later}?")]
        await harness.client.send(history, stream=False, has_tools=True)
        sent = harness.provider.requests[-1].raw.decode()
        assert [each for each in canaries if each not in sent] == [], "the model gets every secret as it is"
        assert "[masked" not in sent
        await harness.gateway.server_state.wait_for_background()
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1, "each list continued the conversation"
        assert (await store.get_branch(conversation.id)).head_seq == 6
        assert await find_stored(store, admin_url, canaries) == []
        texts = "".join(entry.raw for entry in await store.read_range(conversation.id))
        assert texts.count("[masked GitHub token]") + texts.count("[masked badge]") == len(canaries)
        assert await store.verify_conversation(conversation.id) == []


async def test_a_list_is_recognized_by_another_process_and_after_a_fork(database_url: str, admin_url: str):
    """No cache helps: the paths and the masked messages in the database are all that a list is recognized by."""
    first, second, third = canaries = make_canaries(3)
    messages: list[dict[str, Any]] = [system_message(f"Use {first}."), user_message(f"One {second}")]
    async with run_fake_upstream(respond_with_text("Good.")) as upstream:
        for text in (f"Two {third}", "Three", "Four"):
            async with open_masked(database_url) as store, run_gateway(store, upstream.url) as harness:
                answer = await harness.ask(*messages)
                assert answer.status_code == 200, answer.text
                messages += [assistant_message("Good."), user_message(text)]
        async with open_masked(database_url) as store, run_gateway(store, upstream.url) as harness:
            (conversation,) = await store.list_conversations()
            # A client that drops its oldest messages is recognized by the overlap, in masked form.
            await harness.ask(*messages[3:], x_quire_conversation=conversation.id)
            assert [each.head_seq for each in await store.list_branches(conversation.id)] == [8]
            await harness.ask(*messages[:4], assistant_message("Good."), user_message("Another way"))
            assert [each.head_seq for each in await store.list_branches(conversation.id)] == [8, 6]
            assert len(await store.list_conversations()) == 1
            assert await find_stored(store, admin_url, canaries) == []


async def test_the_manifest_and_the_replay_say_that_a_request_is_masked(database_url: str):
    (canary,) = make_canaries(1)
    async with (
        run_fake_upstream(respond_with_text("Good.")) as upstream,
        open_masked(database_url) as store,
        run_gateway(store, upstream.url) as harness,
    ):
        engine = Engine(store, EngineConfig.create(Settings(model=MODEL)))
        for number, text in enumerate((f"Use {canary} now", "No secret.")):
            body = json.dumps({"model": MODEL, "messages": [user_message(text)]}).encode()
            answer = await harness.post(body)
            conversation = answer.headers["x-quire-conversation"]
            replay = await (await engine.conversation(conversation)).replay(2)
            forwarded = replay.manifest.forwarded
            route = f"/api/conversations/{conversation}/requests/2"
            replayed, stored = [await harness.http.get(f"{route}/{name}") for name in ("replay", "body")]
            assert forwarded is not None
            if number == 0:
                assert replay.sent_body == body.replace(canary[4:].encode(), "…[masked GitHub token]".encode())
                assert not replay.is_as_sent
                assert replay.unknown is not None
                assert "masked" in replay.unknown
                assert "masked" in (replay.mismatch or "")
                assert (replay.manifest.masked, forwarded.replayable) == (True, False)
                assert (replayed.json()["is_as_sent"], stored.headers["x-quire-masked"]) == (False, "true")
            else:
                assert replay.sent_body == stored.content == body
                assert replay.is_as_sent
                assert replay.matches
                assert (replay.manifest.masked, forwarded.replayable) == (None, True)
                assert (replayed.json()["is_as_sent"], stored.headers.get("x-quire-masked")) == (True, None)
            assert await store.verify_conversation(conversation) == []


async def test_an_export_is_restored_with_its_masks_and_refused_with_secrets(database_url: str):
    (canary,) = make_canaries(1)
    messages = [system_message(f"Use {canary}."), user_message(f"Deploy {canary}")]
    async with (
        run_fake_upstream(respond_with_text("Good.")) as upstream,
        SqlStore.open(database_url, masking={"default": TenantMasking()}) as store,
    ):
        plain = store.for_tenant("plain")
        async with run_gateway(store, upstream.url) as harness:
            answer = await harness.ask(*messages)
        masked = [line async for line in store.export_conversation(answer.headers["x-quire-conversation"])]
        copied = await plain.import_conversation(masked)
        assert await plain.verify_conversation(copied.id) == []
        assert canary not in "".join(masked)
        record = await plain.create_conversation("c")
        await plain.append(record.id, Message.user(f"Deploy {canary}"))
        unmasked = [line async for line in plain.export_conversation(record.id)]
        assert canary in "".join(unmasked)
        with pytest.raises(ImportFailed, match="contains a secret"):
            await store.import_conversation(unmasked)


@pytest.mark.every_database
async def test_texts_of_the_api_are_masked(database_url: str, admin_url: str, tmp_path: Path):
    """Titles, names of branches, messages, attachments, summaries, documents, notes and memories."""
    canaries = make_canaries(12)
    texts = iter([f"the token {each} is here" for each in canaries])
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "note.md").write_text(f"# Deploy\n\n{next(texts)}\n\n## {next(texts)}\n")
    async with run_fake_upstream(respond_with_text("Good.")) as upstream, open_masked(database_url) as store:
        async with run_gateway(store, upstream.url) as harness:

            async def call(method: str, path: str, **options: Any) -> Any:
                answer = await harness.http.request(method, f"/api/{path}", **options)
                assert answer.status_code < 300, answer.text
                return answer.json()

            id_ = (await call("POST", "conversations", json={"title": next(texts)}))["id"]
            await call("PATCH", f"conversations/{id_}", json={"title": next(texts)})
            blob = await call("POST", "blobs", content=next(texts), headers={"content-type": "text/plain"})
            attached = Message(role="user", parts=(TextPart(text="See"), FilePart(blob=blob["blob"], name="a.txt")))
            await store.append(id_, attached, Message.tool("c", next(texts)))
            await call("POST", f"conversations/{id_}/branches", json={"fork_seq": 1, "name": next(texts)})
        await store.set_metadata(id_, {"note": next(texts)})
        memory = await store.memories.add("agent", next(texts), source="a file")
        config = EngineConfig.create(Settings(model=MODEL), instructions=next(texts), vault=vault)
        engine = Engine(store, config)
        async for _ in engine.index_vault():
            pass
        conversation = await engine.conversation(id_)
        request = await conversation.prepare(f"{next(texts)} [[note]]")
        reply = await conversation.record(next(texts), request=request)
        assert (await conversation.compact()) is not None
        await engine.wait_for_background()
        assert next(texts, None) is None
        assert await find_stored(store, admin_url, canaries) == []
        stored = [memory.text, (await store.get_conversation(id_)).title, (await store.get_blob(blob["blob"])).data]
        assert ["[masked " in str(each) for each in stored] == [True] * 3
        replay = await conversation.replay(reply.seq)
        assert (replay.manifest.masked, replay.matches) == (True, False)
        assert "masked" in (replay.mismatch or "")
        assert await store.verify_conversation(id_) == []
        assert await store.verify_tenant() == []
        lines = [line async for line in store.export_conversation(id_)]
        await store.import_conversation(lines, as_id="copy")
        assert await store.verify_conversation("copy") == []
