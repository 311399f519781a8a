"""Documents: references of a conversation, files of the vault, and uploaded blobs."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from quire.context.vault import Vault
from quire.errors import InvalidRequest
from quire.log import MAIN_BRANCH
from quire.model import Entry
from quire.model.entry_metadata import DocumentReference
from quire.server.dependencies import BranchQuery, ConversationId, ReadCaller, StateDep, WriteCaller, engine_for_caller

router = APIRouter(prefix="/api", tags=["references"])

DEFAULT_NAME_LIMIT = 50
"""Default number of document names in a response."""


class DocumentUseSchema(BaseModel):
    """A message that names a document, or a tool result that found it."""

    seq: int
    role: str | None
    kind: str = Field(description="`direct` if the message names it, `search` if a tool found it.")
    injected: bool = Field(description="The document's text was included in the message that the model saw.")
    blob: str | None = Field(description="Digest of the document's text at that time.")
    snippet: str | None


class ReferencedDocumentSchema(BaseModel):
    link: str
    path: str | None = Field(description="Null if the link is broken.")
    summary: str | None
    uses: list[DocumentUseSchema]


class ReferencedDocumentListSchema(BaseModel):
    items: list[ReferencedDocumentSchema]


class DocumentNameSchema(BaseModel):
    name: str = Field(description="Name to use in a [[link]] or after @.")
    path: str
    is_note: bool = Field(description="A note, which can be linked; otherwise a plain file.")


class DocumentNameListSchema(BaseModel):
    items: list[DocumentNameSchema]


class DocumentTextSchema(BaseModel):
    path: str
    text: str


class StoredBlobSchema(BaseModel):
    """An uploaded file. Messages refer to it in a part of type `file` or `image` with this `blob`."""

    blob: str
    media_type: str
    size: int


@router.get("/conversations/{conversation}/references")
async def list_references(
    caller: ReadCaller, server_state: StateDep, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> ReferencedDocumentListSchema:
    """Lists documents that messages of the branch name or that tools found for them, in order of first use."""
    store = engine_for_caller(server_state, caller).store
    return ReferencedDocumentListSchema(
        items=_group_references(await store.list_referencing_entries(conversation, branch=branch))
    )


def _group_references(entries: Iterable[Entry]) -> list[ReferencedDocumentSchema]:
    documents: dict[str, ReferencedDocumentSchema] = {}
    for entry in entries:
        for reference in entry.metadata.references or ():
            document = documents.setdefault(
                reference.path or reference.link,
                ReferencedDocumentSchema(link=reference.link, path=reference.path, summary=reference.summary, uses=[]),
            )
            document.summary = reference.summary or document.summary
            document.uses.append(_to_use_schema(entry, reference))
    return list(documents.values())


def _to_use_schema(entry: Entry, reference: DocumentReference) -> DocumentUseSchema:
    return DocumentUseSchema(
        seq=entry.seq,
        role=entry.role,
        kind=reference.kind,
        injected=bool(reference.injected),
        blob=reference.blob,
        snippet=reference.snippet,
    )


@router.get("/documents")
async def find_document_names(
    caller: ReadCaller,
    server_state: StateDep,
    query: Annotated[str, Query(max_length=500, description="Part of a name.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = DEFAULT_NAME_LIMIT,
) -> DocumentNameListSchema:
    """Finds notes and files of the vault whose names contain the query; names that start with it come first."""
    vault = engine_for_caller(server_state, caller).vault
    return DocumentNameListSchema(
        items=await asyncio.to_thread(_search_names, vault, query.casefold(), limit) if vault else []
    )


def _search_names(vault: Vault, query: str, limit: int) -> list[DocumentNameSchema]:
    files = [file.path for file in vault.root.list_files()]
    matches = [path for path in files if query in path.casefold()]
    matches.sort(key=lambda path: (not _stem(path).casefold().startswith(query), len(path), path))
    name_counts = Counter(_stem(path).casefold() for path in files if path.endswith(".md"))
    return [_to_name_schema(path, unique=name_counts[_stem(path).casefold()] == 1) for path in matches[:limit]]


def _stem(path: str) -> str:
    return PurePosixPath(path).name.removesuffix(".md")


def _to_name_schema(path: str, *, unique: bool) -> DocumentNameSchema:
    """A note gets its bare name if that is unique, else its path."""
    is_note = path.endswith(".md")
    name = path if not is_note else _stem(path) if unique else path.removesuffix(".md")
    return DocumentNameSchema(name=name, path=path, is_note=is_note)


@router.get("/documents/content")
async def read_document(
    caller: ReadCaller, server_state: StateDep, path: Annotated[str, Query(min_length=1, max_length=2_000)]
) -> DocumentTextSchema:
    """Reads the current text of a file of the vault."""
    vault = engine_for_caller(server_state, caller).vault
    if vault is None:
        raise InvalidRequest(
            "There is no vault to read from; configure the setting `vault`, and name the tenant in "
            "`host_access_tenants` if its clients use API keys."
        )
    file = await asyncio.to_thread(vault.read, path)
    return DocumentTextSchema(path=file.path, text=file.text)


@router.get("/blobs/{digest}")
async def read_blob(
    caller: ReadCaller, server_state: StateDep, digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
) -> Response:
    """Reads a file that a message or request quoted, as it was then. Sandboxed: browsers never render it as a page."""
    blob = await engine_for_caller(server_state, caller).store.get_blob(digest)
    headers = {
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, max-age=31536000, immutable",
    }
    return Response(blob.data, media_type=blob.media_type, headers=headers)


@router.post("/blobs", status_code=201)
async def upload_blob(caller: WriteCaller, server_state: StateDep, request: Request) -> StoredBlobSchema:
    """Stores the request body, of any media type, as a blob for messages."""
    data = await request.body()
    media_type = request.headers.get("content-type", "application/octet-stream")
    digest = await engine_for_caller(server_state, caller).store.put_blob(data, media_type=media_type)
    return StoredBlobSchema(blob=digest, media_type=media_type, size=len(data))
