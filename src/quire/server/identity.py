"""Who asks: the tenant that a key speaks for, and what the key lets it do."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from fastapi import Request

from quire.log import DEFAULT_TENANT

Scope = Literal["read", "write", "chat", "admin"]


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    key: str | None
    scopes: frozenset[Scope]


def caller_with(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    async def caller(request: Request) -> Caller:
        return Caller(DEFAULT_TENANT, None, frozenset[Scope](("read", "write", "chat", "admin")))

    return caller
