"""Where the secrets of a conversation are: entries of all branches and their text attachments, read in batches."""

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from quire.model import Entry
from quire.store import SqlStore
from quire.store.export_import import EXPORT_BATCH_SIZE
from quire.view.secrets import find_secrets

MAX_ATTACHMENT_BYTES = 10_000_000
"""A larger attachment is not searched."""


class SecretLocation(NamedTuple):
    conversation: str
    branch: int
    seq: int
    kind: str
    mask: str
    """Public start of the secret and its kind; never the secret."""


async def find_conversation_secrets(store: SqlStore, conversation: str) -> AsyncIterator[SecretLocation]:
    """Secrets in order of branches and entries; each secret of an entry once."""
    for branch in await store.list_branches(conversation):
        for first in range(branch.fork_seq + 1, branch.head_seq + 1, EXPORT_BATCH_SIZE):
            last = min(first + EXPORT_BATCH_SIZE - 1, branch.head_seq)
            for entry in await store.read_range(conversation, branch=branch.number, first=first, last=last):
                texts = [entry.raw, entry.raw_metadata or "", *await _read_attachments(store, entry)]
                for kind, mask in dict.fromkeys(_list_masks(texts)):
                    yield SecretLocation(conversation, entry.branch, entry.seq, kind, mask)


def _list_masks(texts: list[str]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for text in texts:
        for match in find_secrets(text):
            secret = text[match.start : match.end]
            if secret not in seen:
                seen.add(secret)
                yield match.kind, match.mask


async def _read_attachments(store: SqlStore, entry: Entry) -> list[str]:
    """The attachments of a message that are text."""
    if entry.kind != "message" or '"blob":"' not in entry.raw:
        return []
    found = [await store.get_blob(digest) for digest in sorted(set(entry.message.blob_digests()))]
    return [blob.data.decode(errors="replace") for blob in found if _is_text(blob.media_type, len(blob.data))]


def _is_text(media_type: str, size: int) -> bool:
    is_text_type = media_type.startswith("text/") or media_type.split(";")[0].endswith(("json", "xml", "yaml", "toml"))
    return size <= MAX_ATTACHMENT_BYTES and is_text_type
