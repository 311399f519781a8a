"""Compaction items of OpenAI's Responses: sealed references to a compacted conversation of the log.

An item represents the summary, and the messages after those that it covers. Its `encrypted_content` has no secret:
it names the entries, and its MAC proves that Quire wrote it. The key is the digest of the newest entry, which depends
on all entries before it.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from pydantic import TypeAdapter
from pydantic_core import to_json

from quire.errors import NotFound
from quire.log import Store
from quire.model import Compaction, Entry, Span
from quire.server.gateway.codecs.responses import SEAL_PREFIX
from quire.server.gateway.response_items import build_entry_items, make_entry_key
from quire.view.counted_input import build_summary_text
from quire.view.wire_formats import WireMessage


class _Reference(NamedTuple):
    conversation: str
    branch: int
    head: int
    """The newest entry that the item represents."""
    compaction: int | None
    """The compaction whose summary replaces the messages that it covers."""


_REFERENCE = TypeAdapter(_Reference)


def get_covered_span(entry: Entry | None) -> Span | None:
    """The messages that a compaction has summarized; None without a summary, since those messages would be lost."""
    body = entry.body if entry is not None else None
    return body.covers if isinstance(body, Compaction) and body.summary is not None else None


def build_compaction_item(head: Entry, compaction: Entry | None, *, tenant: str) -> WireMessage:
    """Builds the item for the branch up to the entry `head`, with its active compaction."""
    seq = compaction.seq if compaction is not None and get_covered_span(compaction) is not None else None
    sealed = _seal(_Reference(head.conversation, head.branch, head.seq, seq), head, tenant)
    key = make_entry_key(head.conversation, head.branch, head.seq)
    return {"id": f"cmp_{key}", "type": "compaction", "encrypted_content": sealed}


async def load_compacted_items(store: Store, sealed: str) -> list[WireMessage]:
    """The summary and the messages that an item represents; none if this tenant has no such conversation."""
    payload = sealed.removeprefix(SEAL_PREFIX).partition(".")[0]
    with suppress(ValueError, NotFound):
        reference = _REFERENCE.validate_json(urlsafe_b64decode(payload))
        head = await store.get_entry(reference.conversation, reference.head, branch=reference.branch)
        if hmac.compare_digest(_seal(reference, head, store.tenant), sealed):
            return await _load_items(store, reference)
    return []


async def _load_items(store: Store, reference: _Reference) -> list[WireMessage]:
    items, first = list[WireMessage](), 1
    if reference.compaction is not None:
        entry = await store.get_entry(reference.conversation, reference.compaction, branch=reference.branch)
        body, covers = entry.body, get_covered_span(entry)
        if isinstance(body, Compaction) and covers is not None:
            content = [{"type": "input_text", "text": build_summary_text(body, covers)}]
            items, first = [{"type": "message", "role": "user", "content": content}], covers.last + 1
    messages = await store.read_range(
        reference.conversation, branch=reference.branch, first=first, last=reference.head, kinds=["message"]
    )
    return [*items, *(item for message in messages for item in build_entry_items(message))]


def _seal(reference: _Reference, head: Entry, tenant: str) -> str:
    payload = urlsafe_b64encode(to_json(reference)).decode()
    mac = hmac.new(head.digest, f"{tenant}\n{payload}".encode(), sha256).hexdigest()
    return f"{SEAL_PREFIX}{payload}.{mac}"
