"""Permissions: which role may do what, and which actions are recorded in the audit trail.

`PERMISSIONS` is the only owner of these rules. Each route names its action, the server decides by this table, the docs
print it, and a test compares it with what every route answers.
"""

from typing import Literal, NamedTuple, get_args

from quire.access.keys import KeyScope
from quire.model.people import USER_ROLES, UserRole, make_space
from quire.server.caller import ALL_SCOPES, Caller
from quire.team.users import User

Relation = Literal["own", "shared", "other"]
"""Whose conversations a request is about: the caller's own, one that is shared with the caller, or another person's of
the same tenant. Another tenant's conversations have no address."""
RELATIONS: tuple[Relation, ...] = get_args(Relation)

_NOBODY = frozenset[UserRole]()
_PEOPLE = frozenset[UserRole]({"member", "owner"})
_OWNERS = frozenset[UserRole]({"owner"})
_ALWAYS = frozenset(RELATIONS)
_OF_OTHERS = frozenset[Relation]({"shared", "other"})


class Permission(NamedTuple):
    """Who may do something, by whose conversations it is about."""

    title: str
    scope: KeyScope
    """Scope that an API key needs."""
    own: frozenset[UserRole]
    shared: frozenset[UserRole] = _NOBODY
    other: frozenset[UserRole] = _NOBODY
    audited: frozenset[Relation] = frozenset()
    """Relations in which the action leaves an entry in the audit trail, whether it is allowed or not."""

    def allows(self, roles: frozenset[UserRole], relation: Relation) -> bool:
        """What is shared with someone is another person's too."""
        allowed: dict[Relation, frozenset[UserRole]] = {
            "own": self.own,
            "shared": self.shared | self.other,
            "other": self.other,
        }
        return bool(roles & allowed[relation])


PERMISSIONS: dict[str, Permission] = {
    "read": Permission(
        "read conversations and what belongs to them", "read", _PEOPLE, other=_OWNERS, audited=_OF_OTHERS
    ),
    "search": Permission(
        "search, and read statistics of all conversations", "read", _PEOPLE, other=_OWNERS, audited=_OF_OTHERS
    ),
    "export": Permission("export a conversation", "read", _PEOPLE, other=_OWNERS, audited=_ALWAYS),
    # All that readers of a shared conversation see: what other routes answer is not masked.
    "read_transcript": Permission(
        "read a conversation as text with secrets masked", "read", _PEOPLE, _PEOPLE, _OWNERS, _ALWAYS
    ),
    "write": Permission("create, import, rename, fork, append", "write", _PEOPLE, audited=_OF_OTHERS),
    "edit": Permission("change what an agent is sent", "write", _PEOPLE, audited=_ALWAYS),
    "chat": Permission("call models", "chat", _PEOPLE, audited=_OF_OTHERS),
    "approve": Permission("approve tool calls", "approve", _PEOPLE, audited=_OF_OTHERS),
    "purge": Permission("erase messages permanently", "admin", _PEOPLE, other=_OWNERS, audited=_ALWAYS),
    "share": Permission("share a conversation", "write", _PEOPLE, audited=_ALWAYS),
    "list_keys": Permission("list API keys and what they spent", "admin", _PEOPLE, other=_OWNERS, audited=_OF_OTHERS),
    "create_key": Permission("create API keys", "admin", _PEOPLE, audited=_ALWAYS),
    "revoke_key": Permission("revoke API keys", "admin", _PEOPLE, other=_OWNERS, audited=_ALWAYS),
    "list_users": Permission("list the people of the tenant", "admin", frozenset({"owner", "operator", "auditor"})),
    "disable_user": Permission(
        "disable a person: end the sessions, stop the keys", "admin", frozenset({"owner", "operator"}), audited=_ALWAYS
    ),
    "read_audit": Permission("read the audit trail", "admin", frozenset({"owner", "auditor"}), audited=_ALWAYS),
    "change_settings": Permission("change settings", "admin", frozenset({"operator"}), audited=_ALWAYS),
    # With these someone could give roles, so only API keys of the tenant itself have them.
    "read_directory": Permission("read people and groups by SCIM", "scim", _NOBODY),
    "provision": Permission("change people and groups by SCIM", "scim", _NOBODY, audited=_ALWAYS),
}


PERSON_SCOPES = ALL_SCOPES - {"scim"}
"""Scopes of a session. What a person may do depends on the roles, and no role provisions people."""


def make_person_caller(tenant: str, user: User) -> Caller:
    """The caller of a person's session."""
    return Caller(make_space(tenant, user.id), user.id, PERSON_SCOPES, roles=user.roles, user=user.id)


def render_permission_table() -> str:
    """The table as Markdown, for the docs."""
    lines = [
        "| action | own | shared with you | another person's | key scope | in the audit trail |",
        "|---|---|---|---|---|---|",
    ]
    for permission in PERMISSIONS.values():
        cells = [
            ", ".join(role for role in USER_ROLES if role in getattr(permission, relation)) or "–"
            for relation in RELATIONS
        ]
        audited = {_ALWAYS: "always", _OF_OTHERS: "unless own"}.get(permission.audited, "–")
        lines.append(f"| {' | '.join([permission.title, *cells, permission.scope, audited])} |")
    return "\n".join(lines)
