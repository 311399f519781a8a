"""What any backend must do with the records of requests, and with what they cost, as tests."""

import pytest

from quire.errors import ConversationNotFound, EntryNotFound, StaleHead
from quire.log import Blob, Store
from quire.model import ROOT
from quire.testing.given import answered, turns


class RecordingContract:
    """The part of `StoreContract` about the ledger."""

    async def test_a_turn_is_recorded_with_its_manifest(self, store: Store) -> None:
        await store.create_conversation("c")
        document = Blob("text/plain", b"a document")
        asked, reply = turns(2)
        turn = answered(asked, reply, blobs=(document,))._replace(cost=0.25, request="r")
        stored = await store.record("c", turn, after=ROOT)
        assert [entry.seq for entry in stored] == [1, 2]
        manifest = await store.manifest("c", 2)
        assert (manifest.conversation, manifest.total, len(manifest.decisions)) == ("c", 2, 1)
        assert await store.blob(manifest.decisions[0].blob or "") == document
        assert await store.record("c", turn, after=ROOT) == stored
        assert await store.spent("c") == 0.25
        with pytest.raises(StaleHead):
            await store.record("c", turn._replace(request="another"), after=ROOT)
        with pytest.raises(EntryNotFound):
            await store.manifest("c", 1)
        with pytest.raises(StaleHead):
            await store.record("c", answered(reply), after=ROOT)

    async def test_manifests_are_read_along_the_branch(self, store: Store) -> None:
        await store.create_conversation("c")
        for _ in range(3):
            await store.record("c", answered(*turns(2)))
        branch = (await store.fork("c", at=4)).number
        await store.record("c", answered(*turns(2)), branch=branch)
        assert [seq for seq, _ in await store.manifests("c", branch=branch)] == [2, 4, 6]
        assert [manifest.branch for _, manifest in await store.manifests("c", branch=branch)] == [0, 0, branch]
        assert [seq for seq, _ in await store.manifests("c", limit=2)] == [4, 6]
        assert [seq for seq, _ in await store.manifests("c", branch=branch, limit=2, last=5)] == [2, 4]

    async def test_a_models_calibration_is_kept(self, store: Store) -> None:
        await store.create_conversation("c")
        assert await store.calibration("test") is None
        for ratio in ('{"ratio":1.1}', '{"ratio":1.2}'):
            await store.record("c", answered(*turns(2), calibration=ratio))
        assert await store.calibration("test") == '{"ratio":1.2}'

    async def test_what_a_conversation_costs_adds_up(self, store: Store) -> None:
        await store.create_conversation("c")
        assert await store.spent("c") == 0
        await store.record("c", answered(*turns(2)))
        assert await store.spend("c", 0.5) == 0.75
        assert await store.spent("c") == 0.75
        with pytest.raises(ConversationNotFound):
            await store.spend("other", 1)
