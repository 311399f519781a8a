"""Pictures, files and documents at hand for rendering, which must not wait: loaded before, in base64, by digest."""

import base64
from collections.abc import Sequence

from quire.errors import BlobNotFound
from quire.log import Store
from quire.model import Entry

LOADED = 200


class LoadedBlobs:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: dict[str, str] = {}

    def get(self, digest: str) -> str | None:
        return self._loaded.get(digest)

    def keep(self, digest: str, data: bytes) -> None:
        """What is not stored yet, but about to be shown."""
        self._loaded[digest] = base64.b64encode(data).decode()

    async def load(self, entries: Sequence[Entry]) -> None:
        """What these entries show; what others showed long ago makes room."""
        if len(self._loaded) > LOADED:
            self._loaded.clear()
        for entry in _quoting(entries):
            for digest in entry.blobs() - self._loaded.keys():
                try:
                    self.keep(digest, (await self._store.blob(digest)).data)
                except BlobNotFound:
                    continue


def _quoting(entries: Sequence[Entry]) -> list[Entry]:
    """Most messages quote nothing, and are not decoded to find that out."""
    return [entry for entry in entries if _QUOTE in entry.raw or (entry.raw_notes and _QUOTE in entry.raw_notes)]


_QUOTE = '"blob":"'
