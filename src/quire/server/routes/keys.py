"""API keys of the tenant: list, create, revoke. Only the response that creates a key contains its text."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, Field

from quire.access.keys import KEY_SCOPES, MAX_KEY_SPEND_USD, MAX_MODEL_PATTERN_CHARS, MAX_MODEL_PATTERNS, KeyScope
from quire.errors import InsufficientScope
from quire.schemas.records import CreatedKeySchema, KeySchema, SpendingSchema
from quire.server.auth import get_key_verifier, require_action
from quire.server.caller import Caller
from quire.server.dependencies import Page, PageCursor, PageLimit, StateDep, decode_cursor, encode_cursor
from quire.settings.schema import tenant_quota_for

router = APIRouter(prefix="/api/keys", tags=["keys"])

ListCaller = Annotated[Caller, Depends(require_action("list_keys"))]

KeyId = Annotated[str, Path(pattern="^[0-9a-z]{26}$", description="ID of the key: its public part, after `quire_`.")]


ModelPattern = Annotated[str, Field(min_length=1, max_length=MAX_MODEL_PATTERN_CHARS)]


class CreateKeyBody(BaseModel):
    name: str = Field(min_length=1, max_length=200)
    scopes: list[KeyScope] = Field(min_length=1, max_length=len(KEY_SCOPES))
    expires_at: int | None = Field(default=None, ge=0, lt=2**63, description="In microseconds since 1970.")
    requests_per_minute: int | None = Field(default=None, gt=0, lt=2**31)
    max_spend: float | None = Field(
        default=None, gt=0, le=MAX_KEY_SPEND_USD, description="Maximum cost of all calls with the key, in US dollars."
    )
    models: list[ModelPattern] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_MODEL_PATTERNS,
        description="Names or patterns, such as gpt-4o*, of the models that the key may call. null for all models.",
    )


class _KeyPosition(BaseModel):
    """Pagination cursor: the last key of a page."""

    id: str
    created_at: int


@router.get("")
async def list_keys(
    caller: ListCaller, server_state: StateDep, limit: PageLimit = 50, cursor: PageCursor = None
) -> Page[KeySchema]:
    """Lists keys, newest first, including revoked and expired ones."""
    position = decode_cursor(cursor, _KeyPosition)
    store = server_state.store.for_tenant(caller.tenant)
    keys = await store.keys.list(limit=limit, before=position)
    spending = await store.spending.sum_by_key()
    last = {"id": keys[-1].id, "created_at": keys[-1].created_at} if len(keys) == limit else None
    items = [KeySchema.from_record(each, spent_usd=spending.get(each.id, 0.0)) for each in keys]
    return Page(items=items, next_cursor=encode_cursor(last))


@router.get("/spending")
async def get_spending(caller: ListCaller, server_state: StateDep) -> SpendingSchema:
    """The cost of all calls of the tenant, with and without a key, and its cap."""
    spending = await server_state.store.for_tenant(caller.tenant).spending.sum_by_key()
    cap = tenant_quota_for(server_state.settings, caller.tenant).max_spend
    return SpendingSchema(spent_usd=sum(spending.values()), max_spend=cap)


@router.post("", status_code=201)
async def create_key(
    caller: Annotated[Caller, Depends(require_action("create_key"))],
    server_state: StateDep,
    body: CreateKeyBody,
    response: Response,
) -> CreatedKeySchema:
    """Creates a key for the caller's tenant, with at most the scopes, models, rate and time of the caller's own key.

    It has these limits also where none are given, and is revoked with the caller's key. A key with a spend cap cannot
    create keys that call models.
    """
    if excess := sorted(set(body.scopes) - caller.scopes):
        raise InsufficientScope(f"The new key cannot have the scope {excess[0]!r}, which you do not have.")
    created, text = await server_state.store.for_tenant(caller.tenant).keys.create(
        body.name,
        body.scopes,
        expires_at=body.expires_at,
        requests_per_minute=body.requests_per_minute,
        max_spend=body.max_spend,
        models=body.models,
        # A person who signed in is no key, and has no limits to pass on.
        created_by=caller.key_id if caller.user is None else None,
    )
    response.headers["Cache-Control"] = "no-store"
    return CreatedKeySchema.from_secret(created, text)


@router.delete("/{key}", status_code=204)
async def revoke_key(
    request: Request,
    caller: Annotated[Caller, Depends(require_action("revoke_key"))],
    server_state: StateDep,
    key: KeyId,
) -> None:
    """Revokes a key and all keys that were created with it: on this node at once, on other nodes within ten seconds."""
    await server_state.store.for_tenant(caller.tenant).keys.revoke(key)
    get_key_verifier(request.app).evict(key)
