"""API keys of the tenant: list, create, revoke. Only the response that creates a key contains its text."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from quire.errors import InsufficientScope
from quire.log import KEY_SCOPES, ApiKey, KeyScope
from quire.schemas.records import CreatedKeySchema, KeySchema
from quire.server.auth import get_key_verifier
from quire.server.dependencies import AdminCaller, Page, PageCursor, PageLimit, StateDep, decode_cursor, encode_cursor

router = APIRouter(prefix="/api/keys", tags=["keys"])

KeyId = Annotated[str, Path(pattern="^[0-9a-z]{26}$", description="ID of the key: its public part, after `quire_`.")]


class CreateKeyBody(BaseModel):
    name: str = Field(min_length=1, max_length=200)
    scopes: list[KeyScope] = Field(min_length=1, max_length=len(KEY_SCOPES))
    expires_at: int | None = Field(default=None, ge=0, lt=2**63, description="In microseconds since 1970.")
    requests_per_minute: int | None = Field(default=None, gt=0, lt=2**31)


class _KeyPosition(BaseModel):
    """Pagination cursor: the last key of a page."""

    id: str
    created_at: int


@router.get("")
async def list_keys(
    caller: AdminCaller, server_state: StateDep, limit: PageLimit = 50, cursor: PageCursor = None
) -> Page[KeySchema]:
    """Lists keys, newest first, including revoked and expired ones."""
    position = decode_cursor(cursor, _KeyPosition)
    before = (
        ApiKey(position.id, "", "", frozenset(), None, position.created_at, None, None)
        if position is not None
        else None
    )
    keys = await server_state.store.for_tenant(caller.tenant).list_keys(limit=limit, before=before)
    last = {"id": keys[-1].id, "created_at": keys[-1].created_at} if len(keys) == limit else None
    return Page(items=[KeySchema.from_record(each) for each in keys], next_cursor=encode_cursor(last))


@router.post("", status_code=201)
async def create_key(
    caller: AdminCaller, server_state: StateDep, body: CreateKeyBody, response: Response
) -> CreatedKeySchema:
    """Creates a key for the caller's tenant, with at most the scopes of the caller's own key."""
    if excess := sorted(set(body.scopes) - caller.scopes):
        raise InsufficientScope(
            f"The new key cannot have the scope {excess[0]!r}, which your own key lacks; use a key that has it."
        )
    created, text = await server_state.store.for_tenant(caller.tenant).create_key(
        body.name, body.scopes, expires_at=body.expires_at, requests_per_minute=body.requests_per_minute
    )
    response.headers["Cache-Control"] = "no-store"
    return CreatedKeySchema.from_secret(created, text)


@router.delete("/{key}", status_code=204)
async def revoke_key(request: Request, caller: AdminCaller, server_state: StateDep, key: KeyId) -> None:
    """Revokes a key: on this node at once, on other nodes within ten seconds."""
    await server_state.store.for_tenant(caller.tenant).revoke_key(key)
    get_key_verifier(request.app).evict(key)
