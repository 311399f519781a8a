"""Recorded requests as they were sent: the list of messages that a client's summary covers, and any other."""

from typing import Any, NamedTuple

from quire.ledger import load_sent_body
from quire.log.types import MAIN_BRANCH
from quire.model import Manifest
from quire.model.json_values import filter_objects
from quire.store import SqlStore
from quire.wire.codec import UnreadableBody, parse_body
from quire.wire.codecs import CODECS


class SentRequest(NamedTuple):
    """A request as it was sent upstream."""

    manifest: Manifest
    body: bytes
    fields: dict[str, Any]
    """The body, parsed."""
    items: list[dict[str, Any]]
    """Its list of messages or items, with every field that they had, cache markers included."""


async def load_sent_request(
    store: SqlStore, conversation: str, reply_seq: int, *, branch: int = MAIN_BRANCH
) -> SentRequest | None:
    """The request that the entry `reply_seq` answered, as it was sent, or None if its body is not stored."""
    manifest = await store.get_manifest(conversation, reply_seq, branch=branch)
    body = await load_sent_body(store, manifest, reply_seq)
    if body is None:
        return None
    try:
        fields = parse_body(body)
    except UnreadableBody:
        return None
    codec = CODECS[manifest.policy.wire_format]
    return SentRequest(manifest, body, fields, filter_objects(fields.get(codec.item_field)))
