"""People of a tenant: their roles, and the name of the tenant in which a person's conversations are stored."""

import re
from typing import Literal, get_args

UserRole = Literal["member", "owner", "auditor", "operator"]
USER_ROLES: tuple[UserRole, ...] = get_args(UserRole)

_SPACE = re.compile(r"([^/]+)/([0-9a-z]{26})", re.ASCII)


def make_space(tenant: str, user: str) -> str:
    """Name of the tenant in which a person's conversations are stored: `acme/<id>` for a person of `acme`.

    Every rule that separates tenants, row-level security included, thus also separates people.
    """
    return f"{tenant}/{user}"


def split_space(tenant: str) -> tuple[str, str | None]:
    """The tenant and the person of a name that `make_space` made. No person for any other name."""
    match = _SPACE.fullmatch(tenant)
    return (match[1], match[2]) if match is not None else (tenant, None)
