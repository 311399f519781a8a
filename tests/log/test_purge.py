"""What is purged is gone from the disk too, where the application has a say in it."""

from pathlib import Path

from quire.log import SqlStore
from quire.model import Message
from quire.testing.contract import turns


async def test_no_file_of_a_sqlite_log_keeps_a_purged_text(tmp_path: Path):
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        await store.create_conversation("c")
        await store.append("c", *turns(50), Message.user("the secret word is xylophone"), *turns(50))
        assert any(b"xylophone" in file.read_bytes() for file in tmp_path.iterdir())
        await store.purge("c", [51])
        assert not any(b"xylophone" in file.read_bytes() for file in tmp_path.iterdir())
        assert await store.verify("c") == []
