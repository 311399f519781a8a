"""Exports and imports: conversations as JSON Lines or Markdown, and files that other programs exported."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from typing_extensions import TypeAliasType

from quire.engine.file_import import ImportOptions
from quire.engine.message_index import schedule_indexing
from quire.engine.shared_transcript import SharedTranscript
from quire.errors import ImportFailed, InvalidRequest
from quire.log import MAIN_BRANCH, ConversationRecord
from quire.schemas.imports import ImportJobListSchema, ImportJobSchema, ImportSourceListSchema
from quire.schemas.records import ConversationSchema
from quire.server.dependencies import (
    BranchQuery,
    ConversationId,
    ExportEngine,
    ReadCaller,
    StateDep,
    TranscriptEngine,
    WriteEngine,
)
from quire.server.event_stream import ClosingStreamingResponse, ndjson_responses
from quire.sources.registry import SOURCES
from quire.store.export_import import ExportLine

router = APIRouter(prefix="/api", tags=["transfer"])
imports_router = APIRouter(prefix="/api", tags=["imports"])

EXPORT_CHUNK_BYTES = 65_536
"""Approximate size of the chunks in which lines are sent."""
MAX_CHUNK_CHARS = 262_144
"""Maximum characters of a chunk."""
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
async def export_conversation(engine: ExportEngine, conversation: ConversationId) -> NdjsonResponse:
    """Exports a conversation, one object a line. An export without a last line with `line` = `end` is incomplete."""
    store = engine.store
    await store.get_branch(conversation)
    disposition = f"attachment; filename*=UTF-8''{quote(conversation, safe='')}.jsonl"
    lines = (f"{line}\n" async for line in store.export_conversation(conversation))
    return NdjsonResponse(_batch_texts(lines), headers={"Content-Disposition": disposition})


@router.get(
    "/conversations/{conversation}/transcript",
    status_code=200,
    response_class=TranscriptResponse,
    responses={200: {"content": {TranscriptResponse.media_type: {"schema": {"type": "string"}}}}},
)
async def export_transcript(
    engine: TranscriptEngine, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> TranscriptResponse:
    """Exports a branch as Markdown to read or share: secrets of known formats are masked, and thinking and attachments
    are left out. It cannot be imported."""
    store = engine.store
    [record] = await store.fill_titles(await store.get_conversation(conversation))
    transcript = SharedTranscript(store, record, await store.get_branch(conversation, branch), format="markdown")
    disposition = f"attachment; filename*=UTF-8''{quote(conversation, safe='')}.md"
    return TranscriptResponse(_batch_texts(transcript.write()), headers={"Content-Disposition": disposition})


async def _batch_texts(texts: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    batch: list[bytes] = []
    size = 0
    async for text in texts:
        # A long line is sent in several chunks: a connection copies each of them on the event loop.
        for start in range(0, len(text), MAX_CHUNK_CHARS):
            batch.append(text[start : start + MAX_CHUNK_CHARS].encode())
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


@router.post("/import", status_code=201, response_model=ConversationSchema, openapi_extra=_IMPORT_REQUEST_BODY)
async def import_conversation(
    request: Request,
    engine: WriteEngine,
    as_id: Annotated[
        str | None, Query(min_length=1, max_length=200, description="ID to import it under. Default: its own.")
    ] = None,
) -> ConversationRecord:
    """Imports an exported conversation in one transaction and verifies every digest. An error names its line."""
    # `LimitsMiddleware` bounds the size of the body.
    with SpooledTemporaryFile[bytes](max_size=MAX_IMPORT_MEMORY_BYTES) as file:
        async for chunk in request.stream():
            await run_in_threadpool(file.write, chunk)
        file.seek(0)
        imported = await engine.store.import_conversation(_decode_lines(file), as_id=as_id)
    schedule_indexing(engine)
    return imported


def _decode_lines(file: IO[bytes]) -> Generator[str, None, None]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise ImportFailed(f"Line {number} is not valid UTF-8: {error}. Nothing was imported.") from error


_UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The file, as the program exported it.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
FileName = Annotated[
    str,
    Query(
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        description="Name of the file. Its ending states its format.",
    ),
]


@imports_router.get("/import-sources")
async def list_import_sources(caller: ReadCaller) -> ImportSourceListSchema:
    """The programs whose conversations can be imported."""
    return ImportSourceListSchema.model_validate({"items": list(SOURCES.values())})


@imports_router.post("/imports", status_code=202, openapi_extra=_UPLOAD_BODY)
async def start_import(
    request: Request,
    engine: WriteEngine,
    server_state: StateDep,
    source: Annotated[str, Query(max_length=50, description="The program that wrote the file.")],
    file: FileName,
    project: Annotated[
        str | None, Query(max_length=500, description="Project of conversations whose source names none.")
    ] = None,
) -> ImportJobSchema:
    """Uploads a file and starts its import, which continues after this response. Poll its progress.

    A second upload adds only what is new.
    """
    if source not in SOURCES:
        raise InvalidRequest(f"{source!r} is no source of conversations; choose one of: {', '.join(SOURCES)}.")
    with server_state.imports.reserve_upload(engine.store.tenant):
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="quire-import-"))
        try:
            path = folder / file
            # `LimitsMiddleware` bounds the size of the body.
            with path.open("wb") as stream:
                async for chunk in request.stream():
                    await asyncio.to_thread(stream.write, chunk)
            job = server_state.imports.start(engine, SOURCES[source], path, ImportOptions(project=project))
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
    return job.to_schema()


@imports_router.get("/imports")
async def list_imports(caller: ReadCaller, server_state: StateDep) -> ImportJobListSchema:
    """The uploads to this process, the newest first."""
    return ImportJobListSchema(items=[job.to_schema() for job in server_state.imports.list_jobs(caller.tenant)])


@imports_router.get("/imports/{id}")
async def get_import(caller: ReadCaller, server_state: StateDep, id: str) -> ImportJobSchema:
    """The progress of an upload."""
    return server_state.imports.get(caller.tenant, id).to_schema()
