"""Export and import of conversations as JSON Lines, with branches, entries, ledger and blobs; export as Markdown."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from typing_extensions import TypeAliasType

from quire.engine.message_index import schedule_indexing
from quire.engine.shared_transcript import SharedTranscript
from quire.errors import ImportFailed
from quire.log import MAIN_BRANCH
from quire.log.export_import import ExportLine
from quire.schemas.records import ConversationSchema
from quire.server.dependencies import (
    BranchQuery,
    ConversationId,
    ReadCaller,
    StateDep,
    WriteCaller,
    engine_for_caller,
    load_conversation,
)
from quire.server.event_stream import ClosingStreamingResponse, ndjson_responses

router = APIRouter(prefix="/api", tags=["transfer"])

EXPORT_CHUNK_BYTES = 65_536
"""Approximate size of the chunks in which lines are sent."""
MAX_IMPORT_MEMORY_BYTES = 1_000_000
"""A larger body is spooled to a file first: an import is one transaction, which must not wait for the client."""


ExportLineSchema = TypeAliasType("ExportLineSchema", ExportLine)


class NdjsonResponse(ClosingStreamingResponse):
    media_type = "application/x-ndjson"


class TranscriptResponse(ClosingStreamingResponse):
    media_type = "text/markdown"


@router.get(
    "/conversations/{conversation}/export",
    status_code=200,
    response_class=NdjsonResponse,
    response_model=ExportLineSchema,
    responses=ndjson_responses("ExportLineSchema"),
)
async def export_conversation(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationId
) -> NdjsonResponse:
    """Exports a conversation, one object a line. An export without a last line with `line` = `end` is incomplete."""
    loaded = await load_conversation(server_state, caller, conversation)
    disposition = f"attachment; filename*=UTF-8''{quote(conversation, safe='')}.jsonl"
    lines = loaded.engine.store.export_conversation(conversation)
    return NdjsonResponse(_batch_lines(lines), headers={"Content-Disposition": disposition})


@router.get(
    "/conversations/{conversation}/transcript",
    status_code=200,
    response_class=TranscriptResponse,
    responses={200: {"content": {TranscriptResponse.media_type: {"schema": {"type": "string"}}}}},
)
async def export_transcript(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> TranscriptResponse:
    """Exports a branch as Markdown to read or share: secrets of known formats are masked, and thinking and attachments
    are left out. It cannot be imported."""
    loaded = await load_conversation(server_state, caller, conversation, branch)
    store = loaded.engine.store
    [record] = await store.fill_titles(await store.get_conversation(conversation))
    transcript = SharedTranscript(store, record, await store.get_branch(conversation, branch), format="markdown")
    disposition = f"attachment; filename*=UTF-8''{quote(conversation, safe='')}.md"
    return TranscriptResponse(_batch_texts(transcript.write()), headers={"Content-Disposition": disposition})


async def _batch_lines(lines: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    async for batch in _batch_texts(f"{line}\n" async for line in lines):
        yield batch


async def _batch_texts(texts: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    batch: list[bytes] = []
    size = 0
    async for text in texts:
        batch.append(text.encode())
        size += len(batch[-1])
        if size >= EXPORT_CHUNK_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    yield b"".join(batch)


_IMPORT_REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "An exported conversation.",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


@router.post("/import", status_code=201, openapi_extra=_IMPORT_REQUEST_BODY)
async def import_conversation(
    request: Request,
    caller: WriteCaller,
    server_state: StateDep,
    as_id: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="ID to import it under; by default its own."),
    ] = None,
) -> ConversationSchema:
    """Imports an exported conversation in one transaction and verifies every digest. An error names its line."""
    async with _spool_body(request) as file:
        engine = engine_for_caller(server_state, caller)
        imported = await engine.store.import_conversation(_decode_lines(file), as_id=as_id)
    schedule_indexing(engine)
    return ConversationSchema.from_record(imported)


@asynccontextmanager
async def _spool_body(request: Request) -> AsyncGenerator[IO[bytes], None]:
    """Spools the body to memory or a temporary file. `LimitsMiddleware` bounds its size."""
    file = SpooledTemporaryFile[bytes](max_size=MAX_IMPORT_MEMORY_BYTES)
    try:
        async for chunk in request.stream():
            await run_in_threadpool(file.write, chunk)
        file.seek(0)
        yield file
    finally:
        file.close()


def _decode_lines(file: IO[bytes]) -> Generator[str, None, None]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise ImportFailed(f"Line {number} is not valid UTF-8: {error}. Nothing was imported.") from error
