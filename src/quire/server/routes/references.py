"""Documents: those that a conversation refers to, those of the vault, and files that somebody brings along."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from quire.context.vault import Vault
from quire.errors import InvalidRequest
from quire.log import MAIN
from quire.model import Entry
from quire.model.notes import DocumentReference
from quire.server.asking import BranchNumber, ConversationId, Reading, Shared, Writing, engine_of

router = APIRouter(prefix="/api", tags=["references"])

MOST = 50


class Use(BaseModel):
    """Where a document was named or found."""

    seq: int
    role: str | None
    kind: str = Field(description="`direct` if the message names it, `search` if a tool found it.")
    injected: bool = Field(description="Its text stood in the message as the model read it.")
    blob: str | None = Field(description="Its text as it was then.")
    snippet: str | None


class DocumentShown(BaseModel):
    link: str
    path: str | None = Field(description="Null if the link is broken.")
    summary: str | None
    uses: list[Use]


class Documents(BaseModel):
    items: list[DocumentShown]


class Named(BaseModel):
    name: str = Field(description="What stands between the brackets of a link, or after the @.")
    path: str
    note: bool = Field(description="It can be linked; otherwise it is only a file.")


class NamesFound(BaseModel):
    items: list[Named]


class Text(BaseModel):
    path: str
    text: str


class Kept(BaseModel):
    """A file that can be named in a message, as a part of type `file` or `image` with this blob."""

    blob: str
    media_type: str
    size: int


@router.get("/conversations/{conversation}/references")
async def list_references(
    caller: Reading, serving: Shared, conversation: ConversationId, branch: BranchNumber = MAIN
) -> Documents:
    """Every document that the branch's messages name, or that tools found for them, by first use."""
    store = engine_of(serving, caller).store
    return Documents(items=_documents(await store.referring(conversation, branch=branch)))


def _documents(entries: Iterable[Entry]) -> list[DocumentShown]:
    found: dict[str, DocumentShown] = {}
    for entry in entries:
        for reference in entry.notes.references or ():
            shown = found.setdefault(
                reference.path or reference.link,
                DocumentShown(link=reference.link, path=reference.path, summary=reference.summary, uses=[]),
            )
            shown.summary = reference.summary or shown.summary
            shown.uses.append(_use(entry, reference))
    return list(found.values())


def _use(entry: Entry, reference: DocumentReference) -> Use:
    return Use(
        seq=entry.seq,
        role=entry.role,
        kind=reference.kind,
        injected=bool(reference.injected),
        blob=reference.blob,
        snippet=reference.snippet,
    )


@router.get("/documents")
async def find_names(
    caller: Reading,
    serving: Shared,
    query: Annotated[str, Query(max_length=500, description="A part of a name.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = MOST,
) -> NamesFound:
    """Notes and files of the vault whose names have this in them: those that begin with it first."""
    vault = engine_of(serving, caller).vault
    return NamesFound(items=await asyncio.to_thread(_names, vault, query.casefold(), limit) if vault else [])


def _names(vault: Vault, query: str, limit: int) -> list[Named]:
    files = [file.path for file in vault.root.files()]
    found = [path for path in files if query in path.casefold()]
    found.sort(key=lambda path: (not _stem(path).casefold().startswith(query), len(path), path))
    named = Counter(_stem(path).casefold() for path in files if path.endswith(".md"))
    return [_named(path, unique=named[_stem(path).casefold()] == 1) for path in found[:limit]]


def _stem(path: str) -> str:
    return PurePosixPath(path).name.removesuffix(".md")


def _named(path: str, *, unique: bool) -> Named:
    """A note goes by its bare name where no other has it."""
    note = path.endswith(".md")
    name = path if not note else _stem(path) if unique else path.removesuffix(".md")
    return Named(name=name, path=path, note=note)


@router.get("/documents/content")
async def read_document(
    caller: Reading, serving: Shared, path: Annotated[str, Query(min_length=1, max_length=2_000)]
) -> Text:
    """A text file of the vault as it is now."""
    vault = engine_of(serving, caller).vault
    if vault is None:
        raise InvalidRequest("There is no vault to read from; set `vault`.")
    file = await asyncio.to_thread(vault.read, path)
    return Text(path=file.path, text=file.text)


@router.get("/blobs/{digest}")
async def read_blob(
    caller: Reading, serving: Shared, digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
) -> Response:
    """What a message or a request quoted, as it was then. Never shown by a browser as a page of its own."""
    blob = await engine_of(serving, caller).store.blob(digest)
    headers = {
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, max-age=31536000, immutable",
    }
    return Response(blob.data, media_type=blob.media_type, headers=headers)


@router.post("/blobs", status_code=201)
async def keep_blob(caller: Writing, serving: Shared, request: Request) -> Kept:
    """Keeps the body, of whatever type it is, for messages to name."""
    data = await request.body()
    media_type = request.headers.get("content-type", "application/octet-stream")
    digest = await engine_of(serving, caller).store.put_blob(data, media_type=media_type)
    return Kept(blob=digest, media_type=media_type, size=len(data))
