"""SCIM 2.0 (RFC 7643, RFC 7644): resources, filters, patches and errors, without I/O.

A person has `userName`, `externalId`, `displayName`, `name`, `emails` and `active`, a group `displayName`, `externalId`
and `members`. Directories send more (titles, telephones, the enterprise extension): that is accepted and not stored.
Patches come in the form of the RFC and in those that Entra ID and Okta send: operations in any case, an object without
a path, keys with dots in it, booleans as text, and members to remove in the value.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from quire.errors import InvalidScim
from quire.model.json_values import is_object
from quire.team.directory import MAX_GROUP_MEMBERS, DirectoryGroup, DirectoryUser, GroupChange
from quire.team.users import MAX_CLAIM_CHARS, MAX_SUBJECT_CHARS
from quire.wire.http_errors import ErrorResponse

SCIM_PREFIX = "/scim/"
SCIM_MEDIA_TYPE = "application/scim+json"
USER_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:Group"
LIST_SCHEMA = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
PATCH_SCHEMA = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
ERROR_SCHEMA = "urn:ietf:params:scim:api:messages:2.0:Error"
CONFIG_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"
RESOURCE_TYPE_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:ResourceType"
SCHEMA_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:Schema"

MAX_PAGE_SIZE = 200
MAX_FILTER_CHARS = 1_000
MAX_OPERATIONS = 1_000
MAX_EMAILS = 20
USER_FILTERS = ("id", "userName", "externalId", "emails.value")
GROUP_FILTERS = ("id", "displayName", "externalId", "members.value")
_EXACT_FILTERS = ("id", "externalId")
_NAME_PARTS = ("formatted", "familyName", "givenName")
_EMAIL_PARTS = ("value", "type", "primary", "display")

_COMPARISON = re.compile(r'\s*([A-Za-z][\w.:$-]*)\s+(\w\w)\s+("(?:[^"\\]|\\.)*"|[^\s"()\[\]]+)\s*', re.ASCII)
_VALUE_PATH = re.compile(r"([A-Za-z][\w]*)\[([^\]]*)\](?:\.(\w+))?", re.ASCII)


# Filters.


def parse_filter(text: str | None, names: Sequence[str]) -> dict[str, str]:
    """Attributes and values that all must be equal. Raises `InvalidScim` for any other filter."""
    if text is None:
        return {}
    supported = f"Filters compare {', '.join(names)} with `eq`, joined by `and`."
    if len(text) > MAX_FILTER_CHARS:
        raise InvalidScim(f"The filter has more than {MAX_FILTER_CHARS:,} characters.", scim_type="invalidFilter")
    # `emails[type eq "work"].value eq "x"` asks for the address, whatever its type.
    text = re.sub(r"emails\[[^\[\]]*\]\.value", "emails.value", text, flags=re.IGNORECASE)
    found: dict[str, str] = {}
    for name, operator, value in _parse_comparisons(text):
        known = next(
            (each for each in names if name.lower() in (each.lower(), each.lower().removesuffix(".value"))), ""
        )
        if not known or operator != "eq" or not isinstance(value, str) or found.setdefault(known, value) != value:
            raise InvalidScim(supported, scim_type="invalidFilter")
    return found


def _parse_comparisons(text: str) -> list[tuple[str, str, Any]]:
    """Attribute, operator and value of each comparison."""
    comparisons, position = list[tuple[str, str, Any]](), 0
    while True:
        match = _COMPARISON.match(text, position)
        try:
            value = json.loads(match[3].lower() if match and match[3][0] != '"' else match[3]) if match else None
        except ValueError:
            match = value = None
        if match is None:
            raise InvalidScim(f"The filter {text[:200]!r} cannot be read.", scim_type="invalidFilter")
        comparisons.append((_strip_schema(match[1]), match[2].lower(), value))
        position = match.end()
        if position == len(text):
            return comparisons
        if text[position : position + 4].lower() != "and ":
            raise InvalidScim(f"The filter {text[:200]!r} cannot be read.", scim_type="invalidFilter")
        position += 4


def _strip_schema(path: str) -> str:
    for schema in (USER_SCHEMA, GROUP_SCHEMA):
        if path.lower().startswith(f"{schema.lower()}:"):
            return path[len(schema) + 1 :]
    return path


# Resources, as clients send them.


def parse_user(body: Mapping[str, Any], *, is_active: bool = True) -> dict[str, Any]:
    """The attributes of a person that are stored; `is_active` is what counts where `active` is not given."""
    values = _fold_keys(body, ("userName", "externalId", "displayName", "active", "name", "emails"))
    user: dict[str, Any] = {"userName": _require_text(values.get("userName"), "userName")}
    user["active"] = _parse_boolean(values.get("active", is_active))
    if (external_id := _optional_text(values.get("externalId"), "externalId", MAX_SUBJECT_CHARS)) is not None:
        user["externalId"] = external_id
    if (display_name := _optional_text(values.get("displayName"), "displayName")) is not None:
        user["displayName"] = display_name
    if values.get("name") is not None:
        parts = _fold_keys(_require_object(values["name"], "name"), _NAME_PARTS)
        name = {part: _optional_text(parts.get(part), f"name.{part}") for part in _NAME_PARTS}
        if stored := {part: value for part, value in name.items() if value is not None}:
            user["name"] = stored
    if values.get("emails"):
        user["emails"] = _parse_emails(values["emails"])
    return user


def _parse_emails(value: object) -> list[dict[str, Any]]:
    emails = list[dict[str, Any]]()
    for each in _as_list(value):
        parts = _fold_keys({"value": each} if isinstance(each, str) else _require_object(each, "emails"), _EMAIL_PARTS)
        email: dict[str, Any] = {"value": _require_text(parts.get("value"), "emails.value")}
        for part in ("type", "display"):
            if (text := _optional_text(parts.get(part), f"emails.{part}")) is not None:
                email[part] = text
        if parts.get("primary") is not None:
            email["primary"] = _parse_boolean(parts["primary"])
        emails.append(email)
    if len(emails) > MAX_EMAILS or sum(bool(each.get("primary")) for each in emails) > 1:
        raise InvalidScim(f"A person has at most {MAX_EMAILS} emails, one of them primary.", scim_type="invalidValue")
    return emails


def parse_group(body: Mapping[str, Any]) -> GroupChange:
    values = _fold_keys(body, ("displayName", "externalId", "members"))
    return GroupChange(
        _require_text(values.get("displayName"), "displayName"),
        _optional_text(values.get("externalId"), "externalId"),
        _parse_members(values.get("members")),
    )


def _parse_members(value: object) -> frozenset[str]:
    members = set[str]()
    for each in _as_list(value):
        parts = _fold_keys({"value": each} if isinstance(each, str) else _require_object(each, "members"), ("value",))
        members.add(_require_text(parts.get("value"), "members.value"))
    return _check_member_count(frozenset(members))


def _check_member_count(members: frozenset[str]) -> frozenset[str]:
    if len(members) > MAX_GROUP_MEMBERS:
        raise InvalidScim(f"A group has at most {MAX_GROUP_MEMBERS:,} members.", scim_type="tooMany")
    return members


def _fold_keys(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The values of these attributes, whose names clients may write in any case. Others are left out."""
    by_lower = {_strip_schema(name).lower(): value for name, value in values.items()}
    return {name: by_lower[name.lower()] for name in names if name.lower() in by_lower}


def _as_list(value: object) -> list[object]:
    return [] if value is None else cast("list[object]", value) if isinstance(value, list) else [value]


def _require_object(value: object, name: str) -> Mapping[str, Any]:
    if not is_object(value):
        raise InvalidScim(f"`{name}` has a value of the wrong type; send an object.", scim_type="invalidValue")
    return value


def _require_text(value: object, name: str, max_chars: int = MAX_CLAIM_CHARS) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= max_chars:
        raise InvalidScim(f"`{name}` must be text of 1 to {max_chars} characters.", scim_type="invalidValue")
    return value


def _optional_text(value: object, name: str, max_chars: int = MAX_CLAIM_CHARS) -> str | None:
    return None if value in (None, "") else _require_text(value, name, max_chars)


def _parse_boolean(value: object) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        # As Entra ID sends it.
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidScim("`active` and `primary` are true or false.", scim_type="invalidValue")
    return value


# Patches.


class PatchOperation(NamedTuple):
    op: str
    """add, replace or remove."""
    path: str
    """Attribute, with its subattribute after a dot. Empty if the value names the attributes."""
    where: tuple[tuple[str, Any], ...]
    """Values that an item must have, of a path such as `emails[type eq "work"].value`."""
    has_filter: bool
    value: Any


def parse_patch(body: Mapping[str, Any]) -> list[PatchOperation]:
    values = _fold_keys(body, ("Operations", "schemas"))
    if PATCH_SCHEMA not in _as_list(values.get("schemas")):
        raise InvalidScim(f"The body needs `schemas` with {PATCH_SCHEMA}.", scim_type="invalidSyntax")
    operations = _as_list(values.get("Operations"))
    if not 0 < len(operations) <= MAX_OPERATIONS:
        raise InvalidScim(f"`Operations` has 1 to {MAX_OPERATIONS:,} operations.", scim_type="invalidSyntax")
    return [each for operation in operations for each in _parse_operation(_require_object(operation, "Operations"))]


def _parse_operation(operation: Mapping[str, Any]) -> list[PatchOperation]:
    parts = _fold_keys(operation, ("op", "path", "value"))
    op, path, value = str(parts.get("op", "")).lower(), parts.get("path"), parts.get("value")
    if op not in ("add", "replace", "remove"):
        raise InvalidScim("`op` is add, replace or remove.", scim_type="invalidSyntax")
    if op != "remove" and "value" not in parts:
        raise InvalidScim(f"The operation {op} needs a `value`.", scim_type="invalidValue")
    if path in (None, ""):
        if op == "remove":
            raise InvalidScim("The operation remove needs a `path`.", scim_type="noTarget")
        # One operation for each attribute of the value. Entra ID writes `name.givenName` as one key.
        attributes = _require_object(value, "value")
        return [PatchOperation(op, _strip_schema(name), (), False, each) for name, each in attributes.items()]
    if not isinstance(path, str) or len(path) > MAX_FILTER_CHARS:
        raise InvalidScim("The path cannot be read.", scim_type="invalidPath")
    path = _strip_schema(path)
    if "[" not in path:
        return [PatchOperation(op, path, (), False, value)]
    match = _VALUE_PATH.fullmatch(path)
    if match is None:
        raise InvalidScim(f"The path {path[:200]!r} cannot be read.", scim_type="invalidPath")
    comparisons = _parse_comparisons(match[2])
    if any(operator != "eq" for _, operator, _ in comparisons):
        raise InvalidScim("A filter in a path compares with `eq`, joined by `and`.", scim_type="invalidFilter")
    where = tuple((name, expected) for name, _, expected in comparisons)
    return [PatchOperation(op, f"{match[1]}.{match[3]}" if match[3] else match[1], where, True, value)]


def patch_user(resource: Mapping[str, Any], operations: Sequence[PatchOperation]) -> dict[str, Any]:
    """The person after these operations. What is not stored of a person is ignored."""
    user: dict[str, Any] = json.loads(json.dumps(dict(resource)))
    for each in operations:
        attribute, _, part = each.path.partition(".")
        attribute = next((name for name in _USER_ATTRIBUTES if name.lower() == attribute.lower()), "")
        match attribute:
            case "emails":
                user["emails"] = _patch_emails(_as_list(user.get("emails")), each, part)
            case "name" if part or each.op != "remove":
                values = {part: each.value} if part else _require_object(each.value, "name")
                name = dict(_require_object(user.get("name", {}), "name"))
                for key, value in _fold_keys(values, _NAME_PARTS).items():
                    name[key] = None if each.op == "remove" else value
                user["name"] = name
            case "id" | "meta" | "groups" | "schemas" if each.has_filter or part or each.op == "remove":
                raise InvalidScim(f"`{attribute}` cannot be changed.", scim_type="mutability")
            case "userName" | "externalId" | "displayName" | "active" | "name":
                if each.op == "remove" and attribute in ("userName", "active"):
                    # Without `active`, someone who has left would be let in again.
                    raise InvalidScim(f"A person needs `{attribute}`.", scim_type="invalidValue")
                user[attribute] = each.value if each.op != "remove" else None
            case _:
                continue
    return parse_user(user)


_USER_ATTRIBUTES = (
    "userName",
    "externalId",
    "displayName",
    "active",
    "name",
    "emails",
    "id",
    "meta",
    "groups",
    "schemas",
)


def _patch_emails(emails: list[Any], operation: PatchOperation, part: str) -> list[Any]:
    op, value = operation.op, operation.value
    part = next((name for name in _EMAIL_PARTS if name.lower() == part.lower()), part)
    matches = [each for each in emails if _matches(each, operation.where)] if operation.has_filter else emails
    if op == "remove" and part:
        for each in matches:
            each.pop(part, None)
        return [each for each in emails if "value" in each]
    if op == "remove":
        gone = _parse_emails(value) if value else []
        values = {each["value"] for each in gone}
        return [each for each in emails if each not in matches or (values and each["value"] not in values)]
    if part and not matches:
        # As Entra ID sends the first address of a person: `emails[type eq "work"].value`.
        return [*emails, {**dict(operation.where), part: value}]
    if part:
        for each in matches:
            each[part] = value
        return emails
    if operation.has_filter:
        if not matches and op == "replace":
            raise InvalidScim("No address matches the filter of the path.", scim_type="noTarget")
        changed = _require_object(value, "emails")
        return [{**each, **changed} if each in matches else each for each in emails]
    new = _parse_emails(value)
    if op == "replace":
        return new
    if any(each.get("primary") for each in new):
        emails = [{**each, "primary": False} for each in emails]
    values = {each["value"] for each in new}
    return [*(each for each in emails if each["value"] not in values), *new]


def _matches(item: Mapping[str, Any], where: Sequence[tuple[str, Any]]) -> bool:
    def fold(value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    by_lower = {name.lower(): value for name, value in item.items()}
    return all(fold(by_lower.get(name.lower())) == fold(value) for name, value in where)


def patch_group(group: GroupChange, operations: Sequence[PatchOperation]) -> GroupChange:
    for each in operations:
        match each.path.lower():
            case "displayname":
                if each.op == "remove":
                    raise InvalidScim("A group needs `displayName`.", scim_type="invalidValue")
                group = group._replace(display_name=_require_text(each.value, "displayName"))
            case "externalid":
                value = None if each.op == "remove" else _optional_text(each.value, "externalId")
                group = group._replace(external_id=value)
            case "members":
                group = group._replace(members=_patch_members(group.members, each))
            case _:
                continue
    return group


def _patch_members(members: frozenset[str], operation: PatchOperation) -> frozenset[str]:
    named = _parse_members(operation.value)
    if operation.has_filter:
        if operation.op != "remove":
            raise InvalidScim("A member cannot be changed; remove it, and add another.", scim_type="mutability")
        return members - {value for name, value in operation.where if name.lower() == "value"}
    match operation.op:
        case "add":
            return _check_member_count(members | named)
        case "replace":
            return named
        case _:
            # Entra ID names the members to remove in the value. Without one all are removed.
            return members - named if operation.value is not None else frozenset()


# Resources, as clients read them.


def render_user(user: DirectoryUser, base: str) -> dict[str, Any]:
    groups = [{"value": group, "display": name, "$ref": f"{base}/Groups/{group}"} for group, name in user.groups]
    meta = _render_meta("User", user.created_at, user.changed_at, f"{base}/Users/{user.id}")
    return {
        "schemas": [USER_SCHEMA],
        "id": user.id,
        **user.resource,
        **({"groups": groups} if groups else {}),
        "meta": meta,
    }


def render_group(group: DirectoryGroup, base: str) -> dict[str, Any]:
    members = [{"value": each, "type": "User", "$ref": f"{base}/Users/{each}"} for each in group.members]
    return {
        "schemas": [GROUP_SCHEMA],
        "id": group.id,
        **({"externalId": group.external_id} if group.external_id is not None else {}),
        "displayName": group.display_name,
        **({"members": members} if members else {}),
        "meta": _render_meta("Group", group.created_at, group.changed_at, f"{base}/Groups/{group.id}"),
    }


def _render_meta(kind: str, created_at: int, changed_at: int, location: str) -> dict[str, str]:
    created, changed = (
        datetime.fromtimestamp(each / 1_000_000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for each in (created_at, changed_at)
    )
    return {"resourceType": kind, "created": created, "lastModified": changed, "location": location}


def render_list(resources: Sequence[Mapping[str, Any]], total: int, start: int) -> dict[str, Any]:
    return {
        "schemas": [LIST_SCHEMA],
        "totalResults": total,
        "startIndex": start,
        "itemsPerPage": len(resources),
        "Resources": list(resources),
    }


def select_attributes(resource: dict[str, Any], attributes: str | None, excluded: str | None) -> dict[str, Any]:
    """The resource with only these attributes, or without those. What every resource has stays."""

    def split(names: str) -> list[list[str]]:
        return [_strip_schema(each.strip()).lower().split(".", 1) for each in names.split(",") if each.strip()]

    chosen, always = dict[str, Any](), ("schemas", "id")
    for name, value in resource.items():
        requested = [each for each in split(attributes or "") if each[0] == name.lower()]
        unwanted = [each for each in split(excluded or "") if each[0] == name.lower()]
        if name in always or (not attributes and not unwanted):
            chosen[name] = value
        elif attributes and requested:
            parts = {each[1] for each in requested if len(each) == 2}
            keep: Callable[[str], bool] = lambda part, parts=parts: part.lower() in parts  # noqa: E731
            chosen[name] = _select_parts(value, keep) if all(len(each) == 2 for each in requested) else value
        elif unwanted and all(len(each) == 2 for each in unwanted):
            parts = {each[1] for each in unwanted}
            chosen[name] = _select_parts(value, lambda part, parts=parts: part.lower() not in parts)
    return chosen


def _select_parts(value: Any, keep: Callable[[str], bool]) -> Any:
    if isinstance(value, list):
        return [_select_parts(each, keep) for each in cast("list[Any]", value)]
    return {name: each for name, each in value.items() if keep(name)} if is_object(value) else value


def build_scim_error(status: int, problem: Mapping[str, Any]) -> ErrorResponse:
    """The error of a problem document, as RFC 7644 has it."""
    scim_type = problem.get("scim_type")
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        status, scim_type = HTTPStatus.BAD_REQUEST.value, "invalidValue"
    body = {"schemas": [ERROR_SCHEMA], "status": str(status), "detail": problem.get("detail") or ""}
    body |= {"scimType": scim_type} if scim_type is not None else {}
    return ErrorResponse(status, json.dumps(body).encode(), {"content-type": SCIM_MEDIA_TYPE})


# What the server says about itself.


def render_config(base: str) -> dict[str, Any]:
    return {
        "schemas": [CONFIG_SCHEMA],
        "patch": {"supported": True},
        "bulk": {"supported": False, "maxOperations": 0, "maxPayloadSize": 0},
        "filter": {"supported": True, "maxResults": MAX_PAGE_SIZE},
        "changePassword": {"supported": False},
        "sort": {"supported": False},
        "etag": {"supported": False},
        "authenticationSchemes": [
            {
                "type": "oauthbearertoken",
                "name": "API key",
                "description": "An API key of the tenant with the scope scim, as a bearer token.",
                "primary": True,
            }
        ],
        "meta": {"resourceType": "ServiceProviderConfig", "location": f"{base}/ServiceProviderConfig"},
    }


def render_resource_types(base: str) -> list[dict[str, Any]]:
    return [
        {
            "schemas": [RESOURCE_TYPE_SCHEMA],
            "id": name,
            "name": name,
            "endpoint": f"/{name}s",
            "schema": schema,
            "meta": {"resourceType": "ResourceType", "location": f"{base}/ResourceTypes/{name}"},
        }
        for name, schema in (("User", USER_SCHEMA), ("Group", GROUP_SCHEMA))
    ]


def render_schemas(base: str) -> list[dict[str, Any]]:
    name = [_attribute(part) for part in _NAME_PARTS]
    email = [_attribute("value"), _attribute("type"), _attribute("primary", "boolean"), _attribute("display")]
    reference = _attribute("$ref", "reference", caseExact=True)
    group = [{**each, "mutability": "readOnly"} for each in (_attribute("value"), _attribute("display"))]
    immutable = {"mutability": "immutable"}
    member = [
        _attribute("value", caseExact=True) | immutable,
        reference | {"referenceTypes": ["User"]} | immutable,
        _attribute("type", canonicalValues=["User"]) | immutable,
    ]
    user_attributes = [
        _attribute("userName", required=True, uniqueness="server"),
        _attribute("displayName"),
        _attribute("active", "boolean", required=True),
        _attribute("name", "complex", subAttributes=name),
        _attribute("emails", "complex", multiValued=True, subAttributes=email),
        _attribute(
            "groups",
            "complex",
            multiValued=True,
            mutability="readOnly",
            subAttributes=[*group, reference | {"referenceTypes": ["Group"], "mutability": "readOnly"}],
        ),
    ]
    group_attributes = [
        _attribute("displayName", required=True),
        _attribute("members", "complex", multiValued=True, subAttributes=member),
    ]
    return [
        {
            "schemas": [SCHEMA_SCHEMA],
            "id": schema,
            "name": name,
            "description": description,
            "attributes": attributes,
            "meta": {"resourceType": "Schema", "location": f"{base}/Schemas/{schema}"},
        }
        for schema, name, description, attributes in (
            (USER_SCHEMA, "User", "A person of the tenant.", user_attributes),
            (GROUP_SCHEMA, "Group", "A group, which gives roles.", group_attributes),
        )
    ]


def _attribute(name: str, type: str = "string", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": type,
        "multiValued": False,
        "required": False,
        "caseExact": False,
        "mutability": "readWrite",
        "returned": "default",
        "uniqueness": "none",
        **changes,
    }
