"""SCIM 2.0: a directory (Okta, Entra ID and others) creates, changes and deactivates the people of a tenant.

The routes exist only where `sign_in.provisioning` is `scim`. The API key in the request names the tenant.
"""

import json
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from quire.errors import InvalidScim, NotFound, UserNotFound
from quire.model.json_values import is_object
from quire.server.auth import RequireAction, get_access_policy, get_caller, require_action
from quire.server.caller import Caller
from quire.server.dependencies import StateDep
from quire.settings.schema import SignIn
from quire.team import scim
from quire.team.access import require_access
from quire.team.directory import Directory, RolesByGroup, roles_by_group_for
from quire.team.scim import SCIM_MEDIA_TYPE
from quire.team.store import TeamStore

BASE_PATH = "/scim/v2"


def require_provisioning(request: Request, server_state: StateDep) -> None:
    """Raises `NotFound` where no directory provisions people."""
    sign_in = server_state.settings.sign_in
    if get_access_policy(request.app) is None or sign_in is None or sign_in.provisioning != "scim":
        raise NotFound('No directory provisions people here; set `sign_in.provisioning` to "scim".')


router = APIRouter(prefix=BASE_PATH, include_in_schema=False, dependencies=[Depends(require_provisioning)])


class RequireChange(RequireAction):
    """Authorizes a change, whose entry in the audit trail says whom it is about and whether it is a deactivation."""

    async def __call__(self, request: Request) -> Caller:
        caller, details = await get_caller(request), _describe_change(await request.body())
        return await require_access(request).authorize(request, caller, self.action, **details)


def _describe_change(body: bytes) -> dict[str, str]:
    try:
        resource = _parse_body(body)
        operations = scim.parse_patch(resource) if "Operations" in resource else []
    except InvalidScim:
        return {}
    values = {name.lower(): value for name, value in resource.items()}
    values |= {each.path.lower(): each.value for each in operations}
    named = {name: str(values[name.lower()])[:200] for name in ("externalId", "active") if name.lower() in values}
    return named | (
        {"group": str(values["displayname"])[:200]} if "members" in values and "displayname" in values else {}
    )


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not is_object(parsed):
        raise InvalidScim("The body is not a JSON object.", scim_type="invalidSyntax")
    return parsed


async def read_body(request: Request) -> dict[str, Any]:
    return _parse_body(await request.body())


ReadCaller = Annotated[Caller, Depends(require_action("read_directory"))]
ChangeCaller = Annotated[Caller, Depends(RequireChange("provision"))]
Body = Annotated[dict[str, Any], Depends(read_body)]
Attributes = Annotated[str | None, Query(max_length=scim.MAX_FILTER_CHARS)]
Excluded = Annotated[str | None, Query(max_length=scim.MAX_FILTER_CHARS, alias="excludedAttributes")]
Start = Annotated[int, Query(alias="startIndex")]
Count = Annotated[int, Query()]


class _ScimResponse(JSONResponse):
    media_type = SCIM_MEDIA_TYPE


class _Tenant:
    """The tenant's directory, and what its groups mean."""

    def __init__(self, caller: Caller, server_state: StateDep) -> None:
        sign_in = cast(SignIn, server_state.settings.sign_in)
        self.base = f"{sign_in.url}{BASE_PATH}"
        self.directory: Directory = TeamStore(server_state.store.for_tenant(caller.team)).directory
        self.roles: RolesByGroup = roles_by_group_for(sign_in, caller.team)


def _limit_page(start: int, count: int) -> tuple[int, int]:
    """The first number of a page, from 1, and its size, as RFC 7644 reads values out of range."""
    return min(max(1, start), 2**31), min(max(0, count), scim.MAX_PAGE_SIZE)


@router.get("/Users")
async def list_users(
    caller: ReadCaller,
    server_state: StateDep,
    filter: str | None = None,
    startIndex: Start = 1,  # noqa: N803 (SCIM's name)
    count: Count = 100,
    attributes: Attributes = None,
    excluded: Excluded = None,
) -> Response:
    tenant, (start, size) = _Tenant(caller, server_state), _limit_page(startIndex, count)
    filters = scim.parse_filter(filter, scim.USER_FILTERS)
    total, users = await tenant.directory.list_users(filters=filters, offset=start - 1, limit=size)
    resources = [scim.select_attributes(scim.render_user(each, tenant.base), attributes, excluded) for each in users]
    return _ScimResponse(scim.render_list(resources, total, start))


@router.post("/Users", status_code=201)
async def create_user(caller: ChangeCaller, server_state: StateDep, body: Body) -> Response:
    tenant = _Tenant(caller, server_state)
    user = await tenant.directory.create_user(scim.parse_user(body), tenant.roles)
    return _respond_created(scim.render_user(user, tenant.base))


def _respond_created(resource: dict[str, Any]) -> Response:
    return _ScimResponse(resource, status_code=201, headers={"Location": resource["meta"]["location"]})


@router.get("/Users/{id}")
async def get_user(
    caller: ReadCaller, server_state: StateDep, id: str, attributes: Attributes = None, excluded: Excluded = None
) -> Response:
    tenant = _Tenant(caller, server_state)
    _, users = await tenant.directory.list_users(filters={"id": id}, offset=0, limit=1)
    if not users:
        raise UserNotFound("The directory has no person with that id.")
    return _ScimResponse(scim.select_attributes(scim.render_user(users[0], tenant.base), attributes, excluded))


@router.put("/Users/{id}")
async def replace_user(caller: ChangeCaller, server_state: StateDep, id: str, body: Body) -> Response:
    tenant = _Tenant(caller, server_state)
    user = await tenant.directory.change_user(
        id, lambda before: scim.parse_user(body, is_active=before["active"]), tenant.roles
    )
    return _ScimResponse(scim.render_user(user, tenant.base))


@router.patch("/Users/{id}")
async def patch_user(caller: ChangeCaller, server_state: StateDep, id: str, body: Body) -> Response:
    tenant, operations = _Tenant(caller, server_state), scim.parse_patch(body)
    user = await tenant.directory.change_user(id, lambda before: scim.patch_user(before, operations), tenant.roles)
    return _ScimResponse(scim.render_user(user, tenant.base))


@router.delete("/Users/{id}", status_code=204)
async def delete_user(caller: ChangeCaller, server_state: StateDep, id: str) -> None:
    await _Tenant(caller, server_state).directory.delete_user(id)


@router.get("/Groups")
async def list_groups(
    caller: ReadCaller,
    server_state: StateDep,
    filter: str | None = None,
    startIndex: Start = 1,  # noqa: N803 (SCIM's name)
    count: Count = 100,
    attributes: Attributes = None,
    excluded: Excluded = None,
) -> Response:
    tenant, (start, size) = _Tenant(caller, server_state), _limit_page(startIndex, count)
    filters = scim.parse_filter(filter, scim.GROUP_FILTERS)
    total, groups = await tenant.directory.list_groups(
        filters=filters, offset=start - 1, limit=size, with_members=_wants_members(attributes, excluded)
    )
    resources = [scim.select_attributes(scim.render_group(each, tenant.base), attributes, excluded) for each in groups]
    return _ScimResponse(scim.render_list(resources, total, start))


def _wants_members(attributes: str | None, excluded: str | None) -> bool:
    """Whether members are read at all: a group may have thousands, and Entra ID excludes them."""
    return "members" in attributes.lower() if attributes else (excluded or "").strip().lower() != "members"


@router.post("/Groups", status_code=201)
async def create_group(caller: ChangeCaller, server_state: StateDep, body: Body) -> Response:
    tenant = _Tenant(caller, server_state)
    group = await tenant.directory.create_group(scim.parse_group(body), tenant.roles)
    return _respond_created(scim.render_group(group, tenant.base))


@router.get("/Groups/{id}")
async def get_group(
    caller: ReadCaller, server_state: StateDep, id: str, attributes: Attributes = None, excluded: Excluded = None
) -> Response:
    tenant = _Tenant(caller, server_state)
    _, groups = await tenant.directory.list_groups(
        filters={"id": id}, offset=0, limit=1, with_members=_wants_members(attributes, excluded)
    )
    if not groups:
        raise UserNotFound("The directory has no group with that id.")
    return _ScimResponse(scim.select_attributes(scim.render_group(groups[0], tenant.base), attributes, excluded))


@router.put("/Groups/{id}")
async def replace_group(caller: ChangeCaller, server_state: StateDep, id: str, body: Body) -> Response:
    tenant, new = _Tenant(caller, server_state), scim.parse_group(body)
    group = await tenant.directory.change_group(id, lambda _: new, tenant.roles)
    return _ScimResponse(scim.render_group(group, tenant.base))


@router.patch("/Groups/{id}")
async def patch_group(caller: ChangeCaller, server_state: StateDep, id: str, body: Body) -> Response:
    tenant, operations = _Tenant(caller, server_state), scim.parse_patch(body)
    group = await tenant.directory.change_group(id, lambda before: scim.patch_group(before, operations), tenant.roles)
    return _ScimResponse(scim.render_group(group, tenant.base))


@router.delete("/Groups/{id}", status_code=204)
async def delete_group(caller: ChangeCaller, server_state: StateDep, id: str) -> None:
    tenant = _Tenant(caller, server_state)
    await tenant.directory.delete_group(id, tenant.roles)


@router.get("/ServiceProviderConfig")
async def get_config(caller: ReadCaller, server_state: StateDep) -> Response:
    return _ScimResponse(scim.render_config(_Tenant(caller, server_state).base))


@router.get("/ResourceTypes")
async def list_resource_types(caller: ReadCaller, server_state: StateDep) -> Response:
    found = scim.render_resource_types(_Tenant(caller, server_state).base)
    return _ScimResponse(scim.render_list(found, len(found), 1))


@router.get("/ResourceTypes/{name}")
async def get_resource_type(caller: ReadCaller, server_state: StateDep, name: str) -> Response:
    return _respond_with(scim.render_resource_types(_Tenant(caller, server_state).base), name)


@router.get("/Schemas")
async def list_schemas(caller: ReadCaller, server_state: StateDep) -> Response:
    found = scim.render_schemas(_Tenant(caller, server_state).base)
    return _ScimResponse(scim.render_list(found, len(found), 1))


@router.get("/Schemas/{name}")
async def get_schema(caller: ReadCaller, server_state: StateDep, name: str) -> Response:
    return _respond_with(scim.render_schemas(_Tenant(caller, server_state).base), name)


def _respond_with(found: list[dict[str, Any]], id: str) -> Response:
    for each in found:
        if each["id"] == id:
            return _ScimResponse(each)
    raise NotFound(f"There is no {id[:200]!r}.")
