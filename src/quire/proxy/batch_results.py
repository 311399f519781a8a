"""Results of batches that pass the gateway: each is recorded once, as a reply at the price of the batch tier.

A provider gives the results of a batch back as JSON lines: Anthropic from the batch, OpenAI as a file. The requests are
in another file, or were sent by another program, so the log has the replies alone, one conversation for each batch.
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from pydantic_core import from_json

from quire.concurrency.worker_threads import run_sized
from quire.engine import Engine
from quire.log import ConversationOrigin, ConversationRecord
from quire.log.imports import ImportBatch, ImportItem, make_item_id
from quire.model import EntryMetadata, Usage
from quire.model.ids import now
from quire.model.json_values import get_object, get_text, is_object
from quire.wire import Reply
from quire.wire.codecs import CHAT, MESSAGES, RESPONSES
from quire.wire.json_limits import exceeds_json_limit

BATCH_CLIENT = "batch"
MAX_RESULTS = 100_000
"""Results of one batch that are recorded, the most that providers accept."""
_RESULTS_PATH = re.compile(r"messages/batches/(?P<batch>[\w-]{1,100})/results|files/(?P<file>[\w-]{1,100})/content")


class BatchResult(NamedTuple):
    custom_id: str
    """The client's name for the request."""
    reply: Reply


def find_results_id(path: str) -> str | None:
    """The ID of the batch, or of the file, whose results a path gives, or None for another path."""
    found = _RESULTS_PATH.fullmatch(path)
    return found and (found["batch"] or found["file"])


def parse_results(content: bytes) -> Iterator[BatchResult]:
    """The replies among the lines. Lines of other files, failed requests and embeddings have none."""
    for line in content.splitlines()[:MAX_RESULTS]:
        if b'"custom_id"' not in line or exceeds_json_limit(line):
            continue
        try:
            fields: object = from_json(line)
        except ValueError:
            continue
        custom_id = get_text(fields, "custom_id") if is_object(fields) else None
        if custom_id is None or not is_object(fields):
            continue
        message, body = get_object(fields, "result").get("message"), get_object(fields, "response").get("body")
        if is_object(message):
            replies = MESSAGES.parse_response(message)
        elif is_object(body):
            replies = (CHAT if "choices" in body else RESPONSES).parse_response(body)
        else:
            continue
        yield from (BatchResult(custom_id, reply) for reply in replies[:1] if reply.message.parts)


async def record_results(engine: Engine, id: str, content: bytes) -> None:
    """Records the replies that the log does not have yet, in a conversation of their batch."""

    def build() -> list[ImportItem]:
        items: list[ImportItem] = []
        for custom_id, reply in parse_results(content):
            usage = reply.usage or Usage()
            usage = usage.model_copy(
                update={"provider_fields": {**(usage.provider_fields or {}), "service_tier": "batch"}}
            )
            cost = engine.config.compute_cost(usage, usage.model or "")
            raw = reply.message.canonical_json()
            metadata = EntryMetadata(usage=usage, cost_usd=cost.usd, cost_incomplete=not cost.is_complete)
            items.append(
                ImportItem(
                    id=make_item_id(f"{id}/{custom_id}"),
                    parent=items[-1].id if items else None,
                    raw=raw,
                    role="assistant",
                    at=at,
                    digest=sha256(raw.encode()).digest(),
                    metadata=metadata.canonical_json(),
                )
            )
        return items

    at = now()
    items = await run_sized(len(content), build)
    if items:
        origin = ConversationOrigin(client=BATCH_CLIENT, session=id)
        record = ConversationRecord(f"{BATCH_CLIENT}-{id}", f"Batch {id}", at, at, origin)
        await engine.store.imports.append([ImportBatch(record, items, {})])
