"""`quire key`: who may ask the server, for which tenant, and for what."""

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.output import give, moment, note, print_json, table, text, timestamp
from quire.cli.running import About, AsJson, Given, Limit, about, command, group, opened_store, run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Key

app = group("Look after the keys that let programs ask the server.")

_SECONDS = {"h": 3_600, "d": 86_400, "w": 604_800}
_FOREVER = 100 * 366 * _SECONDS["d"]

Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="Whose keys; a tenant is there once something is its own.")
]
DEFAULT_TENANT = "default"
"""As in the log."""


def _period(said: str) -> int:
    """Seconds in a period such as `12h`, `90d` or `4w`."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})([hdw])", said, re.ASCII)
    seconds = int(found[1]) * _SECONDS[found[2]] if found is not None else 0
    if not 0 < seconds <= _FOREVER:
        raise typer.BadParameter("give hours, days or weeks, such as 12h, 90d or 4w.")
    return seconds


def key_document(key: "Key") -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "scopes": _scopes(key),
        "requests_per_minute": key.requests_per_minute,
        "created_at": timestamp(key.created_at),
        "expires_at": timestamp(key.expires_at),
        "revoked_at": timestamp(key.revoked_at),
    }


def _scopes(key: "Key") -> list[str]:
    from quire.log import SCOPES

    return [scope for scope in SCOPES if scope in key.scopes]


@command(app, "quire key create telescope --scope read --scope chat --expires 90d")
def create(
    name: Annotated[str, typer.Argument(help="What to know it by, such as the program that uses it.")],
    *,
    scope: Annotated[
        list[str],
        typer.Option(metavar="SCOPE", help="What it may do: read, write, chat or admin; may be given several times."),
    ],
    tenant: Tenant = DEFAULT_TENANT,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD", help="For how long: 12h, 90d, 4w; else until it is revoked.", show_default=False
        ),
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(min=1, help="How often it may ask; else as often as the settings say.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Make a key, and print it this once: only its digest is stored."""
    seconds = _period(expires) if expires is not None else None
    made, shown = run(_created(about(given=given), tenant, name, scope, seconds, requests_per_minute))
    if as_json:
        print_json(key_document(made) | {"key": shown})
    else:
        # As it is: a table would break it over two lines where the terminal is narrow.
        sys.stdout.write(f"{shown}\n")
    until = f"until {moment(made.expires_at)}" if made.expires_at is not None else "until it is revoked"
    note(f"This is the key {made.name!r} of tenant {tenant}, good {until}. Keep it now: it is not shown again.")


async def _created(
    target: About, tenant: str, name: str, scopes: list[str], seconds: int | None, requests_per_minute: int | None
) -> "tuple[Key, str]":
    from quire.log.fresh import now

    expires_at = now() + seconds * 1_000_000 if seconds is not None else None
    async with opened_store(target) as store:
        return await store.for_tenant(tenant).create_key(
            name, scopes, expires_at=expires_at, requests_per_minute=requests_per_minute
        )


@command(app, "quire key list", name="list")
def list_(*, tenant: Tenant = DEFAULT_TENANT, limit: Limit = 50, as_json: AsJson = False, given: Given = None) -> None:
    """List a tenant's keys, the newest first; their secrets are nowhere to be seen."""
    found = run(_listed(about(given=given), tenant, limit))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield table(
            "id", "name", "scopes", "since", "until", "a minute",
            rows=[_row(each) for each in found],
            right=("a minute",), wide=("name",),
        ) if found else text(f"The tenant {tenant} has no keys; `quire key create` makes one.")  # fmt: skip

    give({"tenant": tenant, "keys": [key_document(each) for each in found]}, draw, as_json=as_json)


def _row(key: "Key") -> tuple[Any, ...]:
    until = moment(key.expires_at) if key.revoked_at is None else f"revoked {moment(key.revoked_at)}"
    return key.id, key.name, " ".join(_scopes(key)), moment(key.created_at), until, key.requests_per_minute


async def _listed(target: About, tenant: str, limit: int) -> "list[Key]":
    async with opened_store(target) as store:
        return await store.for_tenant(tenant).keys(limit=limit)


@command(app, "quire key revoke 01ke6pfy600000000000000005")
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `list` shows it.")],
    *,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Let nobody in with a key any more; a running server notices within ten seconds."""
    gone = run(_revoked(about(given=given), tenant, key))
    give(key_document(gone), lambda _: [text(f"Revoked {gone.id} ({gone.name}).")], as_json=as_json)


async def _revoked(target: About, tenant: str, id: str) -> "Key":
    async with opened_store(target) as store:
        return await store.for_tenant(tenant).revoke_key(id)
