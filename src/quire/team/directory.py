"""People and groups of a tenant as a directory provisions them, by SCIM.

A person of the directory is a row of `users` too, with the same id: its subject is the directory's `externalId`, which
is how a sign-in finds the person. Groups give roles, which are stored with the person at each change. Someone who is
inactive, or was removed from the directory, has none, and so no session, key or sign-in: that is apart from
`disabled_at`, by which an owner disables a person. All writes of a tenant's directory wait for each other.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, delete, func, insert, select, text, update

from quire.db.dialects import sanitize_text
from quire.db.schema import directory_groups, directory_members, directory_users, sessions, users
from quire.db.store_part import StorePart, read, write
from quire.errors import DirectoryConflict, SignInRefused, UserNotFound
from quire.log.row_digests import ROW_DIGEST, has_row_digest, with_row_digest
from quire.model.ids import new_id, now
from quire.model.people import USER_ROLES, UserRole
from quire.settings.schema import SignIn
from quire.team.users import MAX_CLAIM_CHARS, User, to_user

EVERYONE_GROUP = "*"
"""Group of the settings that everyone of the directory is in."""
MAX_GROUP_MEMBERS = 10_000
_BATCH_SIZE = 500

RolesByGroup = Mapping[str, frozenset[UserRole]]
"""Roles that the groups of the settings give in this tenant, by the name of the group or the directory's id of it."""


def roles_by_group_for(sign_in: SignIn, tenant: str) -> RolesByGroup:
    """Roles that each group of the provider has in this tenant."""
    return {name: frozenset({each.role}) for name, each in sign_in.groups.items() if each.tenant == tenant}


class DirectoryUser(NamedTuple):
    id: str
    resource: Mapping[str, Any]
    """Attributes of SCIM: `userName` and `active` always, `externalId`, `displayName`, `name` and `emails` if given."""
    created_at: int
    changed_at: int
    groups: tuple[tuple[str, str], ...]
    """Id and name of each group that the person is in."""


class DirectoryGroup(NamedTuple):
    id: str
    display_name: str
    external_id: str | None
    created_at: int
    changed_at: int
    members: tuple[str, ...]
    """Ids of people; empty unless requested."""


class GroupChange(NamedTuple):
    """What a group is to be."""

    display_name: str
    external_id: str | None
    members: frozenset[str]


def create_directory_user(
    connection: Connection, tenant: str, resource: Mapping[str, Any], roles_by_group: RolesByGroup
) -> DirectoryUser:
    """Creates a person. One who has signed in before has the same row, and what belongs to it, again."""
    _lock(connection, tenant)
    known = _find_by_subject(connection, tenant, _subject_of(resource))
    user, at = known["id"] if known is not None else new_id(), now()
    if known is not None and _find_row(connection, directory_users, tenant, user) is not None:
        raise DirectoryConflict("A person with this externalId exists.")
    if known is None:
        row = {"tenant": tenant, "id": user, "created_at": at, "confirmed_at": 0, "disabled_at": None, "roles": ""}
        row |= _describe(resource)
        connection.execute(insert(users), with_row_digest(users, row))
    _check_user_name(connection, tenant, user, resource["userName"])
    new = {"tenant": tenant, "id": user, **_to_columns(resource), "created_at": at, "changed_at": at}
    connection.execute(insert(directory_users), with_row_digest(directory_users, new))
    _update_user(connection, tenant, user, _describe(resource))
    _update_roles(connection, tenant, [user], roles_by_group)
    return _load_users(connection, tenant, [new])[0]


def change_directory_user(
    connection: Connection,
    tenant: str,
    id: str,
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    roles_by_group: RolesByGroup,
) -> DirectoryUser:
    """Replaces a person's attributes by what `change` makes of them. Who becomes inactive loses sessions and keys."""
    _lock(connection, tenant)
    row = _find_row(connection, directory_users, tenant, id)
    if row is None:
        raise UserNotFound("The directory has no person with that id.")
    after = change(json.loads(row["resource"]))
    _check_user_name(connection, tenant, id, after["userName"])
    holder = _find_by_subject(connection, tenant, _subject_of(after))
    if holder is not None and holder["id"] != id:
        raise DirectoryConflict("Another person has this externalId.")
    changed = with_row_digest(directory_users, {**row, **_to_columns(after), "changed_at": now()})
    names = ("user_name", "resource", "changed_at", ROW_DIGEST)
    this_user = (directory_users.c.tenant == tenant, directory_users.c.id == id)
    connection.execute(update(directory_users).where(*this_user).values({each: changed[each] for each in names}))
    _update_user(connection, tenant, id, _describe(after))
    if not after["active"]:
        connection.execute(delete(sessions).where(sessions.c.tenant == tenant, sessions.c.user_id == id))
    _update_roles(connection, tenant, [id], roles_by_group)
    return _load_users(connection, tenant, [changed])[0]


def delete_directory_user(connection: Connection, tenant: str, id: str) -> None:
    """Removes a person from the directory. What the person wrote stays."""
    _lock(connection, tenant)
    if _find_row(connection, directory_users, tenant, id) is None:
        raise UserNotFound("The directory has no person with that id.")
    for table, column in (
        (directory_users, directory_users.c.id),
        (directory_members, directory_members.c.user_id),
        (sessions, sessions.c.user_id),
    ):
        connection.execute(delete(table).where(table.c.tenant == tenant, column == id))
    _update_user(connection, tenant, id, {"roles": ""})


def list_directory_users(
    connection: Connection, tenant: str, *, filters: Mapping[str, str], offset: int, limit: int
) -> tuple[int, list[DirectoryUser]]:
    """How many people match all filters (`id`, `userName`, `externalId`, `emails.value`), and a page of them."""
    same = (directory_users.c.tenant == users.c.tenant) & (directory_users.c.id == users.c.id)
    conditions = [directory_users.c.tenant == tenant]
    for name, value in filters.items():
        match name:
            case "id":
                conditions.append(directory_users.c.id == value)
            case "userName":
                conditions.append(directory_users.c.user_name == value.lower())
            case "externalId":
                conditions.append(users.c.subject == value)
            case _:
                conditions.append(users.c.email == value)
    count = select(func.count()).select_from(directory_users.join(users, same)).where(*conditions)
    query = select(directory_users).join_from(directory_users, users, same).where(*conditions)
    query = query.order_by(directory_users.c.created_at, directory_users.c.id).offset(offset).limit(limit)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    return connection.execute(count).scalar_one(), _load_users(connection, tenant, rows)


def create_directory_group(
    connection: Connection, tenant: str, group: GroupChange, roles_by_group: RolesByGroup
) -> DirectoryGroup:
    _lock(connection, tenant)
    new, at = new_id(), now()
    row = {"tenant": tenant, "id": new, **_to_group_columns(group), "created_at": at, "changed_at": at}
    connection.execute(insert(directory_groups), with_row_digest(directory_groups, row))
    _set_members(connection, tenant, new, frozenset(), group.members)
    _update_roles(connection, tenant, group.members, roles_by_group)
    return _to_group(row, group.members)


def change_directory_group(
    connection: Connection,
    tenant: str,
    id: str,
    change: Callable[[GroupChange], GroupChange],
    roles_by_group: RolesByGroup,
) -> DirectoryGroup:
    """Replaces a group by what `change` makes of it. Who joins or leaves has the roles that follow at once."""
    _lock(connection, tenant)
    row = _find_row(connection, directory_groups, tenant, id)
    if row is None:
        raise UserNotFound("This tenant has no group with that id.")
    members = frozenset(_list_members(connection, tenant, id))
    after = change(GroupChange(row["display_name"], row["external_id"], members))
    changed = with_row_digest(directory_groups, {**row, **_to_group_columns(after), "changed_at": now()})
    names = ("display_name", "external_id", "changed_at", ROW_DIGEST)
    this_group = (directory_groups.c.tenant == tenant, directory_groups.c.id == id)
    connection.execute(update(directory_groups).where(*this_group).values({each: changed[each] for each in names}))
    _set_members(connection, tenant, id, members, after.members)
    is_renamed = (row["display_name"], row["external_id"]) != (changed["display_name"], changed["external_id"])
    affected = members | after.members if is_renamed else members ^ after.members
    _update_roles(connection, tenant, affected, roles_by_group)
    return _to_group(changed, after.members)


def delete_directory_group(connection: Connection, tenant: str, id: str, roles_by_group: RolesByGroup) -> None:
    _lock(connection, tenant)
    if _find_row(connection, directory_groups, tenant, id) is None:
        raise UserNotFound("This tenant has no group with that id.")
    members = _list_members(connection, tenant, id)
    connection.execute(
        delete(directory_members).where(directory_members.c.tenant == tenant, directory_members.c.group_id == id)
    )
    connection.execute(delete(directory_groups).where(directory_groups.c.tenant == tenant, directory_groups.c.id == id))
    _update_roles(connection, tenant, members, roles_by_group)


def list_directory_groups(
    connection: Connection, tenant: str, *, filters: Mapping[str, str], offset: int, limit: int, with_members: bool
) -> tuple[int, list[DirectoryGroup]]:
    """How many groups match all filters (`id`, `displayName`, `externalId`, `members.value`), and a page of them."""
    conditions = [directory_groups.c.tenant == tenant]
    for name, value in filters.items():
        match name:
            case "id":
                conditions.append(directory_groups.c.id == value)
            case "displayName":
                # Case-insensitive by the schema of SCIM. Roles are given by the exact name.
                conditions.append(func.lower(directory_groups.c.display_name) == value.lower())
            case "externalId":
                conditions.append(directory_groups.c.external_id == value)
            case _:
                in_group = (directory_members.c.tenant == tenant) & (directory_members.c.user_id == value)
                conditions.append(directory_groups.c.id.in_(select(directory_members.c.group_id).where(in_group)))
    count = select(func.count()).select_from(directory_groups).where(*conditions)
    query = select(directory_groups).where(*conditions).order_by(directory_groups.c.created_at, directory_groups.c.id)
    groups = [
        _to_group(row, _list_members(connection, tenant, row["id"]) if with_members else ())
        for row in connection.execute(query.offset(offset).limit(limit)).mappings().all()
    ]
    return connection.execute(count).scalar_one(), groups


def find_provisioned_roles(
    connection: Connection, tenant: str, subject: str, roles_by_group: RolesByGroup
) -> frozenset[UserRole] | None:
    """Roles of the active person with this subject, or None if the directory has no such person."""
    found = _find_by_subject(connection, tenant, subject)
    row = _find_row(connection, directory_users, tenant, found["id"]) if found is not None else None
    if found is None or row is None or not _is_active(row):
        return None
    return _load_roles(connection, tenant, [found["id"]], roles_by_group)[found["id"]]


def confirm_provisioned(connection: Connection, tenant: str, subject: str, roles_by_group: RolesByGroup) -> User:
    """Records a sign-in of a person of the directory, or a refresh of the session, with the roles of this moment."""
    _lock(connection, tenant)
    roles = find_provisioned_roles(connection, tenant, subject, roles_by_group)
    found = _find_by_subject(connection, tenant, subject)
    if roles is None or found is None:
        raise SignInRefused(f"The directory has not provisioned {subject!r}, or has deactivated this account.")
    if found["disabled_at"] is not None:
        raise SignInRefused("An owner or operator of the tenant has disabled this account; ask them to enable it.")
    named = " ".join(role for role in USER_ROLES if role in roles)
    return to_user(_update_user(connection, tenant, found["id"], {"roles": named, "confirmed_at": now()}))


def _lock(connection: Connection, tenant: str) -> None:
    """Lets one transaction at a time change a directory. On SQLite every write transaction is alone anyway."""
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
        connection.execute(lock, {"name": f"quire directory {tenant}"})


def _find_row(connection: Connection, table: Table, tenant: str, id: str) -> dict[str, Any] | None:
    """The row with this id. None also if it was changed outside Quire."""
    row = connection.execute(select(table).where(table.c.tenant == tenant, table.c.id == id)).mappings().first()
    return dict(row) if row is not None and has_row_digest(table, row) else None


def _find_by_subject(connection: Connection, tenant: str, subject: str) -> dict[str, Any] | None:
    query = select(users).where(users.c.tenant == tenant, users.c.subject == subject)
    row = connection.execute(query).mappings().first()
    return dict(row) if row is not None else None


def _is_active(row: Mapping[Any, Any]) -> bool:
    return json.loads(row["resource"])["active"]


def _subject_of(resource: Mapping[str, Any]) -> str:
    return sanitize_text(str(resource.get("externalId") or resource["userName"]))


def _describe(resource: Mapping[str, Any]) -> dict[str, str]:
    """Subject, name and address of a person."""
    name: Mapping[str, str] = resource.get("name") or {}
    parts = " ".join(name[each] for each in ("givenName", "familyName") if name.get(each))
    emails: list[Mapping[str, Any]] = resource.get("emails") or []
    email = next((each["value"] for each in emails if each.get("primary")), emails[0]["value"] if emails else "")
    label = resource.get("displayName") or name.get("formatted") or parts or resource["userName"]
    return {
        "subject": _subject_of(resource),
        "name": sanitize_text(label)[:MAX_CLAIM_CHARS],
        "email": sanitize_text(email)[:MAX_CLAIM_CHARS],
    }


def _to_columns(resource: Mapping[str, Any]) -> dict[str, str]:
    return {
        "user_name": sanitize_text(resource["userName"].lower()),
        "resource": sanitize_text(json.dumps(dict(resource), ensure_ascii=False, sort_keys=True)),
    }


def _to_group_columns(group: GroupChange) -> dict[str, str | None]:
    external_id = sanitize_text(group.external_id) if group.external_id is not None else None
    return {"display_name": sanitize_text(group.display_name), "external_id": external_id}


def _to_group(row: Mapping[Any, Any], members: Iterable[str]) -> DirectoryGroup:
    return DirectoryGroup(
        row["id"],
        row["display_name"],
        row["external_id"],
        row["created_at"],
        row["changed_at"],
        tuple(sorted(members)),
    )


def _check_user_name(connection: Connection, tenant: str, id: str, user_name: str) -> None:
    query = select(directory_users.c.id).where(
        directory_users.c.tenant == tenant,
        directory_users.c.user_name == sanitize_text(user_name.lower()),
        directory_users.c.id != id,
    )
    if connection.execute(query).first() is not None:
        raise DirectoryConflict("Another person has this userName.")


def _update_user(connection: Connection, tenant: str, id: str, values: Mapping[str, Any]) -> dict[str, Any]:
    this_user = (users.c.tenant == tenant, users.c.id == id)
    row = connection.execute(select(users).where(*this_user).with_for_update()).mappings().one()
    changed = with_row_digest(users, {**row, **values})
    names = (*values, ROW_DIGEST)
    connection.execute(update(users).where(*this_user).values({name: changed[name] for name in names}))
    return changed


def _list_members(connection: Connection, tenant: str, group: str) -> list[str]:
    in_group = (directory_members.c.tenant == tenant, directory_members.c.group_id == group)
    return list(connection.execute(select(directory_members.c.user_id).where(*in_group)).scalars())


def _set_members(
    connection: Connection, tenant: str, group: str, before: frozenset[str], after: frozenset[str]
) -> None:
    for ids in _batches(after - before):
        in_directory = (directory_users.c.tenant == tenant, directory_users.c.id.in_(ids))
        if unknown := set(ids) - set(connection.execute(select(directory_users.c.id).where(*in_directory)).scalars()):
            raise UserNotFound(f"The directory has no person with the id {min(unknown)!r}; create it first.")
        rows = [{"tenant": tenant, "group_id": group, "user_id": each} for each in ids]
        connection.execute(insert(directory_members), [with_row_digest(directory_members, row) for row in rows])
    in_group = (directory_members.c.tenant == tenant, directory_members.c.group_id == group)
    for ids in _batches(before - after):
        connection.execute(delete(directory_members).where(*in_group, directory_members.c.user_id.in_(ids)))


def _list_groups(connection: Connection, tenant: str, ids: Collection[str]) -> dict[str, list[Mapping[Any, Any]]]:
    """Groups of each of these people."""
    found: dict[str, list[Mapping[Any, Any]]] = {each: [] for each in ids}
    for batch in _batches(ids):
        query = select(directory_members).where(
            directory_members.c.tenant == tenant, directory_members.c.user_id.in_(batch)
        )
        rows = [row for row in connection.execute(query).mappings() if has_row_digest(directory_members, row)]
        groups: dict[str, Mapping[Any, Any]] = {}
        for names in _batches({row["group_id"] for row in rows}):
            these = (directory_groups.c.tenant == tenant, directory_groups.c.id.in_(names))
            for group in connection.execute(select(directory_groups).where(*these)).mappings():
                if has_row_digest(directory_groups, group):
                    groups[group["id"]] = group
        for row in rows:
            if row["group_id"] in groups:
                found[row["user_id"]].append(groups[row["group_id"]])
    return found


def _load_roles(
    connection: Connection, tenant: str, ids: Collection[str], roles_by_group: RolesByGroup
) -> dict[str, frozenset[UserRole]]:
    active = set[str]()
    for batch in _batches(ids):
        these = (directory_users.c.tenant == tenant, directory_users.c.id.in_(batch))
        rows = connection.execute(select(directory_users).where(*these)).mappings()
        active |= {row["id"] for row in rows if has_row_digest(directory_users, row) and _is_active(row)}
    roles = dict.fromkeys(ids, frozenset[UserRole]())
    for user, groups in _list_groups(connection, tenant, active).items():
        names = {EVERYONE_GROUP, *(group[name] for group in groups for name in ("display_name", "external_id"))}
        given = (roles_by_group.get(name, frozenset[UserRole]()) for name in names if name is not None)
        roles[user] = frozenset[UserRole]().union(*given)
    return roles


def _update_roles(connection: Connection, tenant: str, ids: Collection[str], roles_by_group: RolesByGroup) -> None:
    """Stores the roles that follow from the groups of these people, if they are active."""
    for user, given in _load_roles(connection, tenant, ids, roles_by_group).items():
        named = " ".join(role for role in USER_ROLES if role in given)
        _update_user(connection, tenant, user, {"roles": named})


def _load_users(connection: Connection, tenant: str, rows: Collection[Mapping[str, Any]]) -> list[DirectoryUser]:
    groups = _list_groups(connection, tenant, [row["id"] for row in rows])
    return [
        DirectoryUser(
            row["id"],
            json.loads(row["resource"]),
            row["created_at"],
            row["changed_at"],
            tuple(sorted((group["id"], group["display_name"]) for group in groups[row["id"]])),
        )
        for row in rows
    ]


def _batches(ids: Collection[str]) -> Iterable[list[str]]:
    ordered = sorted(ids)
    return (ordered[start : start + _BATCH_SIZE] for start in range(0, len(ordered), _BATCH_SIZE))


class Directory(StorePart):
    """The tenant's people and groups, as a directory provisions them."""

    create_user = write(create_directory_user)
    change_user = write(change_directory_user)
    delete_user = write(delete_directory_user)
    list_users = read(list_directory_users)
    create_group = write(create_directory_group)
    change_group = write(change_directory_group)
    delete_group = write(delete_directory_group)
    list_groups = read(list_directory_groups)
    find_roles = read(find_provisioned_roles)
    confirm = write(confirm_provisioned)
