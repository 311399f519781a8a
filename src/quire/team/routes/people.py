"""The people of a tenant: who is signed in, who reads which conversation, who has left, and the audit trail.

These routes exist only where the setting `sign_in` is set.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from quire.errors import AccessDenied, UserNotFound
from quire.model.people import USER_ROLES, UserRole
from quire.server.auth import require_action
from quire.server.caller import Caller
from quire.server.dependencies import ConversationId, PageLimit, StateDep
from quire.store import SqlStore
from quire.team.access import require_sign_in
from quire.team.audit import AuditEntry
from quire.team.routes.sign_in import make_share_path
from quire.team.schemas import AuditEntrySchema
from quire.team.store import TeamStore
from quire.team.users import EVERYONE, User

router = APIRouter(prefix="/api", tags=["team"], dependencies=[Depends(require_sign_in)])

ShareCaller = Annotated[Caller, Depends(require_action("share"))]


class UserSchema(BaseModel):
    id: str
    name: str
    email: str
    roles: list[UserRole]
    created_at: int = Field(description="First sign-in, in microseconds since 1970.")
    confirmed_at: int = Field(description="Last time at which the identity provider confirmed the person.")
    disabled_at: int | None

    @classmethod
    def from_record(cls, user: User) -> "UserSchema":
        return cls(
            id=user.id,
            name=user.name,
            email=user.email,
            roles=[role for role in USER_ROLES if role in user.roles],
            created_at=user.created_at,
            confirmed_at=user.confirmed_at,
            disabled_at=user.disabled_at,
        )


class UserListSchema(BaseModel):
    items: list[UserSchema]


class ChangeUserBody(BaseModel):
    disabled: bool = Field(description="Ends all sessions of the person and stops the keys, or undoes that.")


class ReadersBody(BaseModel):
    readers: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        max_length=100,
        description=f"Ids or email addresses of people, or `{EVERYONE}` for all of the tenant; empty to stop sharing.",
    )


class ReadersSchema(BaseModel):
    readers: list[str] = Field(description=f"Ids of people, or `{EVERYONE}`.")
    addresses: list[str] = Field(description="Their email addresses in the same order; the id of one without.")
    link: str = Field(description="Address to send to them; it needs a sign-in.")


class SharedConversationSchema(BaseModel):
    user: str = Field(description="Id of the person who shares it.")
    conversation: str
    link: str


class SharedConversationListSchema(BaseModel):
    items: list[SharedConversationSchema] = Field(description="The newest first; at most 500.")


class AuditPage(BaseModel):
    items: list[AuditEntrySchema] = Field(description="Oldest first.")


@router.get("/users")
async def list_users(
    caller: Annotated[Caller, Depends(require_action("list_users"))], server_state: StateDep
) -> UserListSchema:
    """People of the tenant who have signed in at least once."""
    people = await TeamStore(server_state.store.for_tenant(caller.team)).users.list()
    return UserListSchema(items=[UserSchema.from_record(each) for each in people])


@router.patch("/users/{id}")
async def change_user(
    caller: Annotated[Caller, Depends(require_action("disable_user"))],
    server_state: StateDep,
    id: str,
    body: ChangeUserBody,
) -> UserSchema:
    """Disables a person: sessions end on all servers at once, keys within ten seconds. Or enables a person again."""
    changed = await TeamStore(server_state.store.for_tenant(caller.team)).users.set_disabled(id, body.disabled)
    return UserSchema.from_record(changed)


@router.get("/conversations/{conversation}/readers")
async def get_readers(
    request: Request,
    caller: Annotated[Caller, Depends(require_action("share"))],
    server_state: StateDep,
    conversation: ConversationId,
) -> ReadersSchema:
    """Who may read this conversation of yours."""
    store = server_state.store
    await store.for_tenant(caller.tenant).get_conversation(conversation)
    return await _load_readers(request, store, caller, conversation)


@router.put("/conversations/{conversation}/readers")
async def share_conversation(
    request: Request, caller: ShareCaller, server_state: StateDep, conversation: ConversationId, body: ReadersBody
) -> ReadersSchema:
    """Lets these people of the tenant, and no others, read a conversation of yours as text with secrets masked."""
    store = server_state.store
    await store.for_tenant(caller.tenant).get_conversation(conversation)
    team, readers = TeamStore(store.for_tenant(caller.team)), set[str]()
    for name in body.readers:
        found = None if name == EVERYONE else await team.users.find(name) or await team.users.find_by_email(name)
        if name != EVERYONE and found is None:
            raise UserNotFound(f"{name!r} has not signed in to this tenant yet; check the address.")
        readers.add(found.id if found is not None else EVERYONE)
    if caller.user is None:
        raise AccessDenied("Only a person can share conversations; sign in.")
    await team.shares.set_readers(caller.user, conversation, readers)
    return await _load_readers(request, store, caller, conversation)


async def _load_readers(request: Request, store: SqlStore, caller: Caller, conversation: str) -> ReadersSchema:
    owner = caller.user or ""
    team = TeamStore(store.for_tenant(caller.team))
    readers = await team.shares.list_readers(owner, conversation)
    people = [await team.users.find(reader) for reader in readers]
    addresses = [user.email if user and user.email else reader for user, reader in zip(people, readers, strict=True)]
    base = require_sign_in(request).url
    return ReadersSchema(readers=readers, addresses=addresses, link=f"{base}{make_share_path(owner, conversation)}")


@router.get("/shared")
async def list_shared(
    request: Request, caller: Annotated[Caller, Depends(require_action("read"))], server_state: StateDep
) -> SharedConversationListSchema:
    """Conversations that others share with you. Read one by its link, or its transcript with `?user=`."""
    base = require_sign_in(request).url
    found = await TeamStore(server_state.store.for_tenant(caller.team)).shares.list_shared_with(caller.user or "")
    items = [
        SharedConversationSchema(
            user=each.owner,
            conversation=each.conversation,
            link=f"{base}{make_share_path(each.owner, each.conversation)}",
        )
        for each in found
    ]
    return SharedConversationListSchema(items=items)


@router.get("/audit")
async def read_audit(
    caller: Annotated[Caller, Depends(require_action("read_audit"))],
    server_state: StateDep,
    after: Annotated[int, Query(ge=0, le=2**62, description="Number of the last entry that you have.")] = 0,
    limit: PageLimit = 100,
) -> AuditPage:
    """The audit trail of the tenant. `quire tenant audit` writes all of it."""
    entries: list[AuditEntry] = await TeamStore(server_state.store.for_tenant(caller.team)).audit.list(
        after=after, limit=limit
    )
    return AuditPage(items=[AuditEntrySchema.from_record(each) for each in entries])
