"""The caller of a request, after authentication: tenant, scopes, roles and limits."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from quire.access.keys import KEY_SCOPES, KeyScope
from quire.access.spending import SpendingKey
from quire.model.people import UserRole, split_space
from quire.store import DEFAULT_TENANT

ALL_SCOPES: frozenset[KeyScope] = frozenset(KEY_SCOPES)


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    """Tenant whose conversations the request is about: of a person who signed in, the person's own part of it."""
    key_id: str | None
    """None for the local user of a laptop; of a person who signed in, the person's id."""
    scopes: frozenset[KeyScope]
    max_spend: float | None = None
    """Spend cap of the key in US dollars."""
    models: tuple[str, ...] | None = None
    """Patterns of the models that the key may call, or None for all models."""
    roles: frozenset[UserRole] | None = None
    """None for API keys of the tenant itself, which only their scopes limit."""
    user: str | None = None
    """Id of the person, with a session."""

    @property
    def team(self) -> str:
        """The tenant, without the person."""
        return split_space(self.tenant)[0]

    @property
    def spending_key(self) -> SpendingKey | None:
        """The key that calls are charged to."""
        return SpendingKey(self.key_id, self.max_spend) if self.key_id is not None else None

    def allows_model(self, *names: str | None) -> bool:
        """Whether the key may call the model with these names: the client's name of it and the upstream's."""
        patterns = self.models
        return patterns is None or any(fnmatchcase(name, pattern) for name in names if name for pattern in patterns)


LOCAL_CALLER = Caller(DEFAULT_TENANT, None, ALL_SCOPES)
