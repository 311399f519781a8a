"""Imports of files that other programs exported: upload, and progress."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from quire.engine.import_reader import ImportOptions
from quire.errors import InvalidRequest
from quire.importers.registry import SOURCES
from quire.schemas.imports import (
    ImportJobListSchema,
    ImportJobSchema,
    ImportSourceListSchema,
    ImportSourceSchema,
)
from quire.server.dependencies import ReadCaller, StateDep, WriteCaller, engine_for_caller

router = APIRouter(prefix="/api", tags=["imports"])

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
        description="Name of the file; its ending states its format.",
    ),
]


@router.get("/import-sources")
async def list_import_sources(caller: ReadCaller) -> ImportSourceListSchema:
    """The programs whose conversations can be imported."""
    return ImportSourceListSchema(
        items=[ImportSourceSchema(name=source.name, title=source.title) for source in SOURCES.values()]
    )


@router.post("/imports", status_code=202, openapi_extra=_UPLOAD_BODY)
async def start_import(
    request: Request,
    caller: WriteCaller,
    server_state: StateDep,
    source: Annotated[str, Query(max_length=50, description="The program that wrote the file.")],
    file: FileName,
    project: Annotated[
        str | None, Query(max_length=500, description="Project of conversations whose source names none.")
    ] = None,
) -> ImportJobSchema:
    """Uploads a file and starts its import, which continues after this response; poll its progress.

    A second upload adds only what is new.
    """
    if source not in SOURCES:
        raise InvalidRequest(f"{source!r} is no source of conversations; choose one of: {', '.join(SOURCES)}.")
    engine = engine_for_caller(server_state, caller)
    server_state.imports.check_capacity(engine.store.tenant)
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="quire-import-"))
    try:
        path = folder / file
        await _save_body(request, path)
        job = server_state.imports.start(engine, SOURCES[source], path, ImportOptions(project=project))
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        raise
    return job.to_schema()


async def _save_body(request: Request, path: Path) -> None:
    """Streams the body to a file. `LimitsMiddleware` bounds its size."""
    with path.open("wb") as stream:
        async for chunk in request.stream():
            await asyncio.to_thread(stream.write, chunk)


@router.get("/imports")
async def list_imports(caller: ReadCaller, server_state: StateDep) -> ImportJobListSchema:
    """The uploads to this process, the newest first."""
    return ImportJobListSchema(items=[job.to_schema() for job in server_state.imports.list_jobs(caller.tenant)])


@router.get("/imports/{id}")
async def get_import(caller: ReadCaller, server_state: StateDep, id: str) -> ImportJobSchema:
    """The progress of an upload."""
    return server_state.imports.get(caller.tenant, id).to_schema()
