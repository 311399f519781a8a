"""The tenant's keys: listed, made, revoked. A key's text is in the answer that makes it, and in no other."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from quire.errors import KeyScopeMissing
from quire.log import SCOPES, Key, Scope
from quire.server.asking import Managing, Shared
from quire.server.identity import door_of
from quire.server.paging import Cursor, Limit, Page, cursor_after, mark_in

router = APIRouter(prefix="/api/keys", tags=["keys"])

KeyId = Annotated[str, Path(pattern="^[0-9a-z]{26}$", description="The public part of a key, after `quire_`.")]


class KeyShown(BaseModel):
    id: str
    name: str
    scopes: list[Scope]
    requests_per_minute: int | None = Field(description="Null for what the settings say.")
    created_at: int
    expires_at: int | None
    revoked_at: int | None

    @classmethod
    def of(cls, key: Key) -> "KeyShown":
        return cls(**_fields(key))


class KeyMade(KeyShown):
    key: str = Field(description="The whole key. It is not stored, and nothing shows it again.")


class NewKey(BaseModel):
    name: str = Field(min_length=1, max_length=200)
    scopes: list[Scope] = Field(min_length=1, max_length=len(SCOPES))
    expires_at: int | None = Field(default=None, ge=0, lt=2**63, description="In microseconds since 1970.")
    requests_per_minute: int | None = Field(default=None, gt=0, lt=2**31)


class _Mark(BaseModel):
    """The last key of a page."""

    id: str
    created_at: int


@router.get("")
async def list_keys(caller: Managing, serving: Shared, limit: Limit = 50, cursor: Cursor = None) -> Page[KeyShown]:
    """The newest first, those that were revoked or have expired included."""
    mark = mark_in(cursor, _Mark)
    before = Key(mark.id, "", "", frozenset(), None, mark.created_at, None, None) if mark is not None else None
    found = await serving.store.for_tenant(caller.tenant).keys(limit=limit, before=before)
    last = {"id": found[-1].id, "created_at": found[-1].created_at} if len(found) == limit else None
    return Page(items=[KeyShown.of(each) for each in found], next=cursor_after(last))


@router.post("", status_code=201)
async def create_key(caller: Managing, serving: Shared, new: NewKey, response: Response) -> KeyMade:
    """A key for the caller's own tenant; it can have no scope that the caller's lacks."""
    if beyond := sorted(set(new.scopes) - caller.scopes):
        raise KeyScopeMissing(f"A key cannot give the scope {beyond[0]!r}, which it does not have itself.")
    made, text = await serving.store.for_tenant(caller.tenant).create_key(
        new.name, new.scopes, expires_at=new.expires_at, requests_per_minute=new.requests_per_minute
    )
    response.headers["Cache-Control"] = "no-store"
    return KeyMade(**_fields(made), key=text)


@router.delete("/{key}", status_code=204)
async def revoke_key(request: Request, caller: Managing, serving: Shared, key: KeyId) -> None:
    """Lets nobody in with it any more: here at once, on other nodes within ten seconds."""
    await serving.store.for_tenant(caller.tenant).revoke_key(key)
    door_of(request.app).forget(key)


def _fields(key: Key) -> dict[str, Any]:
    fields = key._asdict()
    del fields["tenant"]
    return fields | {"scopes": [scope for scope in SCOPES if scope in key.scopes]}
