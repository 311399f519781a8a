"""The server's access policy where people sign in: who callers are, what their roles allow, and what is audited."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard, cast

from cachetools import TTLCache
from fastapi import Request
from starlette.responses import RedirectResponse, Response

from quire.errors import (
    AccessDenied,
    ConversationNotFound,
    MissingExtra,
    NotFound,
    RoleRequired,
    SignInRefused,
    SignInRequired,
    SignInUnavailable,
    UserNotFound,
)
from quire.model.ids import now
from quire.model.people import UserRole, make_space, split_space
from quire.server.auth import ALL_KEY_HEADERS, KEY_CACHE_SECONDS, KEY_CACHE_SIZE, check_scope, get_access_policy
from quire.server.caller import Caller
from quire.server.state import ServerState, get_server_state
from quire.settings.schema import SignIn
from quire.team.audit_export import make_audit_exporter
from quire.team.permissions import PERMISSIONS, Relation
from quire.team.scim import SCIM_PREFIX, build_scim_error
from quire.team.store import TeamStore
from quire.team.users import EVERYONE

if TYPE_CHECKING:
    from quire.team.sign_in import SignInService

USER_PARAMETER = "user"
"""Query parameter of every route: the person whose conversations the request is about, by default the caller."""
TEAM_SPACE = "team"
"""Value of `USER_PARAMETER` for conversations of the tenant itself, from its API keys and workloads."""


def make_access_policy(server_state: ServerState) -> "TeamAccess | None":
    """The policy of the setting `sign_in`; without it there are only keys."""
    settings = server_state.settings.sign_in
    return TeamAccess(settings, server_state) if settings is not None else None


class TeamAccess:
    """The access policy, and the service by which people sign in."""

    def __init__(self, settings: SignIn, server_state: ServerState) -> None:
        try:
            from quire.team.sign_in import SignInService
        except ModuleNotFoundError as error:
            raise MissingExtra(extra="sso", feature="Sign-in") from error
        self.sign_in = SignInService(settings, server_state.store, server_state.environ)
        self.error_formats = {SCIM_PREFIX: build_scim_error}
        self._store = server_state.store
        self._exporter = make_audit_exporter(server_state.store, settings, server_state.environ)
        self._key_roles: TTLCache[str, frozenset[UserRole] | None] = TTLCache(KEY_CACHE_SIZE, KEY_CACHE_SECONDS)

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Sends the audit trails to their receiver, if there is one."""
        if self._exporter is None:
            yield
        else:
            async with self._exporter.run():
                yield

    async def authenticate(self, request: Request, presented: str | None) -> Caller | None:
        """A person by the session, or a program by the token of its platform."""
        if presented is None and not any(name in request.headers for name in ALL_KEY_HEADERS):
            return await self.sign_in.authenticate(request)
        if not _is_jwt(presented):
            return None
        try:
            return await self.sign_in.authenticate_workload(presented)
        except SignInRefused as error:
            raise SignInRequired(str(error)) from error

    async def find_key_roles(self, team: str, user: str) -> frozenset[UserRole] | None:
        """A person's keys have the rights of a member, while the person is known, enabled and confirmed."""
        space = make_space(team, user)
        if space not in self._key_roles:
            found = await TeamStore(self._store.for_tenant(team)).users.find(user)
            is_active = found is not None and found.may_use_keys_at(now())
            self._key_roles[space] = frozenset[UserRole]({"member"}) if is_active else None
        return self._key_roles.get(space)

    async def authorize(self, request: Request, caller: Caller, action: str, **details: str) -> Caller:
        """Raises `InsufficientScope`, `RoleRequired`, or `ConversationNotFound` for what is another person's. The audit
        trail has an entry, with these details, before anything is read."""
        target, relation = await self._find_target(request, caller)
        permission = PERMISSIONS[action]
        has_role = caller.roles is None or permission.allows(caller.roles, relation)
        is_allowed = permission.scope in caller.scopes and has_role
        if relation in permission.audited:
            await audit_request(request, caller, action, allowed=is_allowed, **details)
        if is_allowed:
            return caller if relation == "own" else replace(caller, tenant=target)
        check_scope(caller, permission.scope)
        if relation != "own":
            raise ConversationNotFound
        held = ", ".join(sorted(caller.roles or ())) or "none"
        raise RoleRequired(
            f"Your roles ({held}) do not allow this: {permission.title}. Ask an owner of {caller.team!r}."
        )

    async def is_still_authorized(self, request: Request, caller: Caller, presented: str | None) -> bool | None:
        if caller.user is not None:
            _, relation = await self._find_target(request, caller)
            session = await self.sign_in.find_session(request)
            return session is not None and PERMISSIONS["read"].allows(session[2].user.roles, relation)
        if not _is_jwt(presented):
            return None
        try:
            return await self.sign_in.authenticate_workload(presented) == caller
        except SignInUnavailable:
            return True
        except SignInRefused:
            return False

    async def redirect_visit(self, request: Request) -> Response | None:
        """Sends a browser without a session to the identity provider."""
        if await self.sign_in.find_session(request) is not None:
            return None
        path = self.sign_in.make_login_path(f"/?{request.url.query}".rstrip("?"))
        return RedirectResponse(path, status_code=303)

    async def _find_target(self, request: Request, caller: Caller) -> tuple[str, Relation]:
        """The tenant or the person's part of it that a request is about, and what it is to the caller."""
        user = request.query_params.get(USER_PARAMETER)
        if user is None or user == caller.user:
            return caller.tenant, "own"
        if caller.user is None:
            # An API key has only its conversations, and no role with which to read other people's.
            raise AccessDenied(f"The parameter `{USER_PARAMETER}` needs a session; sign in, or omit it.")
        if user == TEAM_SPACE:
            return caller.team, "other"
        team, space = TeamStore(self._store.for_tenant(caller.team)), make_space(caller.team, user)
        if split_space(space)[1] is None or await team.users.find(user) is None:
            raise UserNotFound
        conversation = request.path_params.get("conversation")
        if conversation is not None:
            readers = await team.shares.list_readers(user, conversation)
            if EVERYONE in readers or caller.user in readers:
                return space, "shared"
        return space, "other"


def _is_jwt(presented: str | None) -> TypeGuard[str]:
    """Whether what was presented as an API key has the form of a JSON Web Token."""
    return presented is not None and presented.count(".") == 2 and presented.startswith("ey")


def require_access(request: Request) -> TeamAccess:
    """Returns the policy; raises `NotFound` where there are only keys."""
    policy = get_access_policy(request.app)
    if policy is None:
        raise NotFound("People do not sign in to this server; set `sign_in` to let them.")
    return cast(TeamAccess, policy)


def require_sign_in(request: Request) -> "SignInService":
    """Returns the sign-in service; raises `NotFound` where there are only keys."""
    return require_access(request).sign_in


async def audit_request(request: Request, caller: Caller, action: str, *, allowed: bool = True, **target: str) -> None:
    """Appends an entry to the audit trail of the caller's tenant: who, what, and from where."""
    route = getattr(request.scope.get("route"), "path", request.url.path)
    parameters = {name: str(value)[:200] for name, value in request.path_params.items()}
    about = {USER_PARAMETER: user[:200]} if (user := request.query_params.get(USER_PARAMETER)) is not None else {}
    await TeamStore(get_server_state(request).store.for_tenant(caller.team)).audit.append(
        action,
        actor=caller.key_id or "",
        target={"route": f"{request.method} {route}", **about, **parameters, **target},
        allowed=allowed,
        address=request.client.host if request.client is not None else "",
    )
