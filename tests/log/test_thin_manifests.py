"""Thinned manifests: `why`, the picture and statistics stay, a replay is refused, and everything verifies."""

from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select

from infra.builders import export_lines, make_turn, with_exchange
from quire.db import schema
from quire.db.store_part import read
from quire.engine import Engine, EngineConfig
from quire.ledger.manifests import diff_manifests, find_decision
from quire.ledger.replay import replay
from quire.log.exchanges import SentBody, encode_request
from quire.log.types import Blob
from quire.model import DocumentReference, Draft, Entry, Message
from quire.model.ids import now
from quire.settings import Settings
from quire.store import SqlStore

RULES = Blob("text/plain", b"Answer briefly. " * 50)
TOOL = Blob("application/json", b'{"name":"tide_table","description":"Looks up tides","input_schema":{}}')


async def record(store: SqlStore, count: int, *, branch: int = 0) -> list[Entry]:
    """Replies with rules, a tool and a body, each body stored as a difference to the one before."""
    replies: list[Entry] = []
    base: SentBody | None = None
    for number in range(count):
        content = b"".join(b"question %d " % each for each in range(number + 1))
        turn = make_turn(
            Message.user(f"Question {number}?"), Message.assistant("Aye."), blobs=(RULES, TOOL), body=content
        )
        key = f"{branch}-{len(await store.list_manifests('c', branch=branch))}"
        turn = await with_exchange(store, "c", turn, content, id=key, base=base)
        replies.append((await store.record_reply("c", turn, branch=branch))[-1])
        stored = encode_request("messages", {"x-app": "cli"}, content)
        base = SentBody(key, 0 if base is None else base.chain_deltas + 1, stored)
    return replies


async def count_rows(store: SqlStore) -> dict[str, int]:
    def count(connection: Connection, tenant: str) -> dict[str, int]:
        tables = (schema.blobs, schema.blob_uses, schema.exchanges)
        return {
            table.name.removeprefix("quire_"): connection.execute(
                select(func.count()).select_from(table).where(table.c.tenant == tenant)
            ).scalar_one()
            for table in tables
        }

    return await store.run(read, count)


async def test_a_thinned_manifest_says_why_and_refuses_a_replay(store: SqlStore):
    await store.create_conversation("c")
    replies = [each.seq for each in await record(store, 3)]
    before = [await store.get_manifest("c", seq) for seq in replies]
    report = await store.usage.read_report()
    assert await store.thin_manifests("c", before=now()) == 2
    after = [await store.get_manifest("c", seq) for seq in replies]
    assert after[2] == before[2], "the newest one stays"
    for old, thinned in zip(before[:2], after[:2], strict=True):
        assert thinned.thinned
        assert find_decision(thinned, "blob 0") == find_decision(old, "blob 0").model_copy(update={"blob": None})
        assert (thinned.slots, thinned.total_tokens, thinned.digest) == (old.slots, old.total_tokens, old.digest)
        refused = await replay(store, thinned)
        assert (refused.rendered, refused.matches) == (None, False)
        assert "thin_manifests_after_days" in (refused.mismatch or "")
    assert diff_manifests(after[0], after[2]) == diff_manifests(before[0], before[2])
    assert await store.verify_conversation("c") == []
    assert await store.usage.read_report() == report
    assert await store.thin_manifests("c", before=now()) == 0


@pytest.mark.every_database
async def test_texts_and_bodies_that_nothing_needs_any_more_are_deleted(store: SqlStore):
    await store.create_conversation("c")
    await record(store, 4)
    assert await count_rows(store) == {"blobs": 2, "blob_uses": 8, "exchanges": 4}
    assert await store.thin_manifests("c", before=now()) == 3
    # The newest body is stored as a difference to the others.
    assert await count_rows(store) == {"blobs": 2, "blob_uses": 2, "exchanges": 4}
    newest = (await record(store, 2))[-1]
    assert await store.thin_manifests("c", before=now()) == 2
    assert await count_rows(store) == {"blobs": 2, "blob_uses": 2, "exchanges": 2}
    assert await store.get_request_body("c", newest.seq) == b"question 0 question 1 "
    assert await store.verify_conversation("c") == []


async def test_blobs_of_the_reply_itself_stay(store: SqlStore):
    await store.create_conversation("c")
    note = await store.put_blob(b"A note about tides.")
    reference = DocumentReference(link="note.md", blob=note, injected=True)
    turn = make_turn(blobs=(RULES,))
    answer = Draft(body=Message.assistant("Aye."), references=(reference,))
    await store.record_reply("c", turn._replace(drafts=(Draft(body=Message.user("Tides?")), answer)))
    await record(store, 1)
    assert await store.thin_manifests("c", before=now()) == 1
    assert (await store.get_blob(note)).data == b"A note about tides."
    assert await store.verify_conversation("c") == []


async def test_only_old_manifests_are_thinned_and_each_branch_keeps_its_newest(store: SqlStore):
    await store.create_conversation("c")
    [first, *_] = await record(store, 2)
    fork = await store.fork("c", at=first.seq)
    await record(store, 2, branch=fork.number)
    assert await store.thin_manifests("c", before=first.created_at) == 0
    assert await store.thin_manifests("c", before=now()) == 2
    for number in (0, fork.number):
        newest = (await store.list_manifests("c", branch=number, limit=1))[0][1]
        assert not newest.thinned
        assert (await replay(store, newest)).missing == ()


async def test_a_conversation_goes_on_after_its_manifests_were_thinned(store: SqlStore, tmp_path: Path):
    engine = Engine(store, EngineConfig.create(Settings(model="gpt-4o")))
    conversation = await engine.conversation("c")
    for number in range(3):
        request = await conversation.prepare(f"Question {number}?")
        await conversation.record(Message.assistant("Aye."), request=request)
    assert await store.thin_manifests("c", before=now()) == 2
    request = await conversation.prepare("And now?")
    reply = await conversation.record(Message.assistant("Aye."), request=request)
    assert (await conversation.replay(reply.seq)).matches
    assert not (await conversation.replay(2)).matches
    assert await store.verify_conversation("c") == []
    exported = await export_lines(store, "c")
    async with SqlStore.open(f"sqlite:///{tmp_path}/other.db") as other:
        await other.import_conversation(exported)
        assert await export_lines(other, "c") == exported
