"""Conversations out and in, as JSON Lines: all branches, every entry, the ledger, and what they quote."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from typing_extensions import TypeAliasType

from quire.errors import ImportFailed
from quire.log.transfer import Line
from quire.server.asking import ConversationId, Reading, Shared, Writing, conversation_of, engine_of
from quire.server.routes.conversations import ConversationShown
from quire.server.streams import ClosingStream, lines_of

router = APIRouter(prefix="/api", tags=["transfer"])

CHUNK = 65_536
"""Lines are sent in pieces of about so many bytes."""
IN_MEMORY = 1_000_000
"""A larger body waits in a file until all of it is there: an import is one transaction, and must not wait for it."""


ExportLine = TypeAliasType("ExportLine", Line)


class LineStream(ClosingStream):
    media_type = "application/x-ndjson"


@router.get(
    "/conversations/{conversation}/export",
    status_code=200,
    response_class=LineStream,
    response_model=ExportLine,
    responses=lines_of("ExportLine"),
)
async def export_conversation(caller: Reading, serving: Shared, conversation: ConversationId) -> LineStream:
    """Each line is one of these. The last has `line` = `end`: an export without it broke off."""
    found = await conversation_of(serving, caller, conversation)
    named = f"attachment; filename*=UTF-8''{quote(conversation, safe='')}.jsonl"
    return LineStream(_in_chunks(found.engine.store.export(conversation)), headers={"Content-Disposition": named})


async def _in_chunks(lines: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    held: list[bytes] = []
    size = 0
    async for line in lines:
        held.append(f"{line}\n".encode())
        size += len(held[-1])
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "What an export gave.",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


@router.post("/import", status_code=201, openapi_extra=_BODY)
async def import_conversation(
    request: Request,
    caller: Writing,
    serving: Shared,
    rename: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Keep it under another id than its own.")
    ] = None,
) -> ConversationShown:
    """Takes an exported conversation in: all of it or nothing, every digest checked. An error names its line."""
    async with _spooled(request) as file:
        made = await engine_of(serving, caller).store.import_(_lines(file), rename=rename)
    return ConversationShown.of(made)


@asynccontextmanager
async def _spooled(request: Request) -> AsyncGenerator[IO[bytes], None]:
    """The body, from its beginning, in memory or in a file that goes when this is over. `Limits` bounds its size."""
    file = SpooledTemporaryFile[bytes](max_size=IN_MEMORY)
    try:
        async for piece in request.stream():
            await run_in_threadpool(file.write, piece)
        file.seek(0)
        yield file
    finally:
        file.close()


def _lines(file: IO[bytes]) -> Generator[str, None, None]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise ImportFailed(f"Line {number} is no text in UTF-8: {error}. Nothing was imported.") from error
