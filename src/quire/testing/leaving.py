"""What any backend must do when something leaves the log, for good or as an export, as tests."""

import pytest

from quire.errors import (
    BlobNotFound,
    ConversationExists,
    ConversationNotFound,
    ImportFailed,
    InvalidEntry,
)
from quire.log import Blob, Store
from quire.model import (
    Compaction,
    ImagePart,
    Message,
    Pin,
    Restore,
    Span,
    TextPart,
)
from quire.testing.given import answered, exported, turns


class LeavingContract:
    """The part of `StoreContract` about purge, export and import."""

    async def test_purge_takes_the_content_and_what_was_made_from_it(self, store: Store) -> None:
        await store.create_conversation("c")
        mine, shared = await store.put_blob(b"mine"), await store.put_blob(b"shared")
        pictures = (TextPart(text="secret"), ImagePart(blob=mine), ImagePart(blob=shared))
        await store.append("c", *turns(2), Message(role="user", parts=pictures))
        await store.append("c", Message(role="user", parts=(ImagePart(blob=shared),)), Pin(message=1))
        covering = Compaction(number=1, covers=Span(first=1, last=3), summary="about the secret")
        beside = Compaction(number=2, covers=Span(first=1, last=2), summary="harmless", supersedes=6)
        await store.append("c", covering, beside)
        gone = await store.purge("c", [3])
        assert [entry.seq for entry in gone] == [3, 6]
        assert "secret" not in "".join(await exported(store, "c"))
        assert "harmless" in "".join(await exported(store, "c"))
        with pytest.raises(BlobNotFound):
            await store.blob(mine)
        assert (await store.blob(shared)).data == b"shared"
        assert await store.verify("c") == []
        with pytest.raises(InvalidEntry):
            await store.purge("c", [5])

    async def test_purge_reaches_summaries_on_other_branches_and_whole_conversations(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(4))
        for at in (4, 1):
            branch = await store.fork("c", at=at)
            await store.append("c", *turns(2, start=50), branch=branch.number)
            made = Compaction(number=1, covers=Span(first=1, last=2), summary="kept?")
            await store.append("c", made, branch=branch.number)
        gone = await store.purge("c", [2])
        assert [(entry.branch, entry.seq) for entry in gone] == [(0, 2), (1, 7)]
        await store.purge("c")
        assert "message" not in "".join(line for line in await exported(store, "c") if '"body"' in line).replace(
            '"kind":"message"', ""
        )
        assert await store.verify("c") == []
        assert await store.conversations() == []
        await store.append("c", Message.user("again"))
        assert [each.id for each in await store.conversations()] == ["c"]

    async def test_export_import_export_is_identical(self, store: Store) -> None:
        await store.create_conversation("c", title="Ünïcode")
        digest = await store.put_blob(b"\x00\xff", media_type="image/png")
        await store.append("c", *turns(4), Message(role="user", parts=(ImagePart(blob=digest),)), Pin(message=2))
        await store.append("c", Compaction(number=1, covers=Span(first=1, last=3), summary="s"))
        branch = await store.fork("c", at=7)
        await store.append("c", Restore(compaction=7), Message.user("elsewhere"), branch=branch.number)
        await store.purge("c", [4])
        await store.record("c", answered(*turns(2), blobs=(Blob("text/plain", b"quoted"),)))
        lines = await exported(store, "c")
        copy = await store.import_(lines, rename="copy")
        assert copy.id == "copy"
        again = await exported(store, "copy")
        assert again[1:] == lines[1:]
        assert again[0] == lines[0].replace('"id":"c"', '"id":"copy"')
        assert await store.verify("copy") == []
        assert await store.manifests("copy") == await store.manifests("c")
        assert (await store.window("copy", branch=1)).messages[-1].message.text == "elsewhere"
        with pytest.raises(ConversationExists):
            await store.import_(lines)

    async def test_a_damaged_export_is_refused_whole_and_the_line_named(self, store: Store) -> None:
        await store.create_conversation("c")
        digest = await store.put_blob(b"data")
        await store.append("c", *turns(3), Message(role="user", parts=(ImagePart(blob=digest),)))
        lines = await exported(store, "c")
        changed = [line.replace("message 2", "message X") for line in lines]
        other_blob = [line.replace("ZGF0YQ==", "b3RoZXI=") for line in lines]
        swapped = [*lines[:3], lines[4], lines[3], *lines[5:]]
        damaged = {
            "Line 5": changed,
            "Line 2": other_blob,
            "Line 4": swapped,
            "Line 3": [*lines[:2], "{", *lines[2:]],
            "breaks off": lines[:-1],
            "Line 1": lines[1:],
            "Line 0": [],
            "Line 9": [*lines, lines[-1]],
            "a second conversation": [lines[0], lines[0]],
            "Line 8": [*lines[:-1], lines[-1].replace("4", "5")],
        }
        for expected, wrong in damaged.items():
            with pytest.raises(ImportFailed, match=rf"(?i){expected}\b"):
                await store.import_(wrong, rename="copy")
            with pytest.raises(ConversationNotFound):
                await store.conversation("copy")
