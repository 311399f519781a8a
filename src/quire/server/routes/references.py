"""Documents: references of a conversation, files of the vault, and uploaded blobs."""

import asyncio
from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from quire.context.vault import Vault
from quire.errors import InvalidRequest
from quire.log import MAIN_BRANCH
from quire.server.dependencies import BranchQuery, ConversationId, ReadEngine, WriteEngine

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
    engine: ReadEngine, conversation: ConversationId, branch: BranchQuery = MAIN_BRANCH
) -> ReferencedDocumentListSchema:
    """Lists documents that messages of the branch name or that tools found for them, in order of first use."""
    documents: dict[str, ReferencedDocumentSchema] = {}
    for entry in await engine.store.list_referencing_entries(conversation, branch=branch):
        for reference in entry.metadata.references or ():
            document = documents.setdefault(
                reference.path or reference.link,
                ReferencedDocumentSchema(link=reference.link, path=reference.path, summary=reference.summary, uses=[]),
            )
            document.summary = reference.summary or document.summary
            document.uses.append(
                DocumentUseSchema(
                    seq=entry.seq,
                    role=entry.role,
                    kind=reference.kind,
                    injected=bool(reference.injected),
                    blob=reference.blob,
                    snippet=reference.snippet,
                )
            )
    return ReferencedDocumentListSchema(items=list(documents.values()))


@router.get("/documents")
async def find_document_names(
    engine: ReadEngine,
    query: Annotated[str, Query(max_length=500, description="Part of a name.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = DEFAULT_NAME_LIMIT,
) -> DocumentNameListSchema:
    """Finds notes and files of the vault whose names contain the query. Names that start with it come first."""
    if engine.vault is None:
        return DocumentNameListSchema(items=[])
    items = await asyncio.to_thread(_search_names, engine.vault, query.casefold(), limit)
    return DocumentNameListSchema(items=items)


def _search_names(vault: Vault, query: str, limit: int) -> list[DocumentNameSchema]:
    files = [file.path for file in vault.root.list_files()]
    matches = [path for path in files if query in path.casefold()]
    matches.sort(key=lambda path: (not _stem(path).casefold().startswith(query), len(path), path))
    counts = Counter(_stem(path).casefold() for path in files if path.endswith(".md"))
    items: list[DocumentNameSchema] = []
    for path in matches[:limit]:
        is_note = path.endswith(".md")
        # A note gets its bare name if that is unique, else its path.
        bare = _stem(path) if counts[_stem(path).casefold()] == 1 else path.removesuffix(".md")
        items.append(DocumentNameSchema(name=bare if is_note else path, path=path, is_note=is_note))
    return items


def _stem(path: str) -> str:
    return PurePosixPath(path).name.removesuffix(".md")


@router.get("/documents/content")
async def read_document(
    engine: ReadEngine, path: Annotated[str, Query(min_length=1, max_length=2_000)]
) -> DocumentTextSchema:
    """Reads the current text of a file of the vault."""
    vault = engine.vault
    if vault is None:
        raise InvalidRequest(
            "There is no vault to read from; configure the setting `vault`, and name the tenant in "
            "`trusted_tenants` if its clients use API keys."
        )
    file = await asyncio.to_thread(vault.read, path)
    return DocumentTextSchema(path=file.path, text=file.text)


@router.get("/blobs/{digest}")
async def read_blob(engine: ReadEngine, digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> Response:
    """Reads a file that a message or request quoted, as it was then. Sandboxed: browsers never render it as a page."""
    blob = await engine.store.get_blob(digest)
    headers = {
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, max-age=31536000, immutable",
    }
    return Response(blob.data, media_type=blob.media_type, headers=headers)


@router.post("/blobs", status_code=201)
async def upload_blob(engine: WriteEngine, request: Request) -> StoredBlobSchema:
    """Stores the request body, of any media type, as a blob for messages."""
    data = await request.body()
    media_type = request.headers.get("content-type", "application/octet-stream")
    digest = await engine.store.put_blob(data, media_type=media_type)
    return StoredBlobSchema(blob=digest, media_type=media_type, size=len(data))
