"""`quire key`: API keys of the server, with tenant, scopes, expiry and rate limit."""

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import (
    AsJson,
    CommandTarget,
    Limit,
    SetOptions,
    command,
    create_group,
    make_target,
    open_store,
    run_async,
)
from quire.cli.output import (
    format_local_time,
    make_table,
    make_text,
    print_json,
    print_note,
    print_result,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import ApiKey
    from quire.schemas.records import KeySchema

app = create_group("Manage API keys of the server.")

_UNIT_SECONDS = {"h": 3_600, "d": 86_400, "w": 604_800}
_MAX_PERIOD_SECONDS = 100 * 366 * _UNIT_SECONDS["d"]
"""Longest validity of a key: a hundred years."""

TenantOption = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="The tenant of the keys; created on first use.")
]
DEFAULT_TENANT = "default"
"""As in the log."""


def _parse_period(period: str) -> int:
    """Parses a period such as `12h`, `90d` or `4w` into seconds."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})([hdw])", period, re.ASCII)
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]] if match is not None else 0
    if not 0 < seconds <= _MAX_PERIOD_SECONDS:
        raise typer.BadParameter("use hours, days or weeks, such as 12h, 90d or 4w.")
    return seconds


@command(app, "quire key create telescope --scope read --scope chat --expires 90d")
def create(
    name: Annotated[str, typer.Argument(help="A label, such as the program that uses the key.")],
    *,
    scope: Annotated[
        list[str],
        typer.Option(metavar="SCOPE", help="A scope: read, write, chat, approve or admin; repeatable."),
    ],
    tenant: TenantOption = DEFAULT_TENANT,
    expires: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="Validity: 12h, 90d, 4w; default: until revoked.", show_default=False),
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(min=1, help="Rate limit; default: the settings.", show_default=False),
    ] = None,
    max_spend: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS", help="Maximum cost of all calls in US dollars; default: no cap.", show_default=False
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="A model that the key may call, or a pattern such as 'gpt-4o*'; repeatable; default: all models.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Create an API key and print it once: only its digest is stored."""
    from quire.schemas.records import CreatedKeySchema

    limits = {
        "expires_at": _compute_expiry(expires) if expires is not None else None,
        "requests_per_minute": requests_per_minute,
        "max_spend": max_spend,
        "models": model or None,
    }
    key, secret = run_async(_create_key(make_target(overrides=overrides), tenant, name, scope, limits))
    if as_json:
        print_json({"tenant": tenant} | CreatedKeySchema.from_secret(key, secret).model_dump(mode="json"))
    else:
        # Without a table, which would wrap the key on a narrow terminal.
        sys.stdout.write(f"{secret}\n")
    until = f"until {format_local_time(key.expires_at)}" if key.expires_at is not None else "until revoked"
    print_note(f"API key {key.name!r} of tenant {tenant}, valid {until}. Copy it now: it cannot be printed again.")


def _compute_expiry(period: str) -> int:
    from quire.log.ids import now

    return now() + _parse_period(period) * 1_000_000


async def _create_key(
    target: CommandTarget, tenant: str, name: str, scopes: list[str], limits: dict[str, Any]
) -> "tuple[ApiKey, str]":
    async with open_store(target) as store:
        return await store.for_tenant(tenant).create_key(name, scopes, **limits)


@command(app, "quire key list", name="list")
def list_(
    *, tenant: TenantOption = DEFAULT_TENANT, limit: Limit = 50, as_json: AsJson = False, overrides: SetOptions = None
) -> None:
    """List a tenant's API keys without their secrets, the newest first, and what was spent with them."""
    from quire.cli.engine_setup import load_cli_settings, to_overrides
    from quire.settings.schema import tenant_spend_cap_for

    target = make_target(overrides=overrides)
    schemas, spent = run_async(_load_keys(target, tenant, limit))
    cap = tenant_spend_cap_for(load_cli_settings(to_overrides(target.overrides)).settings, tenant)

    def draw(_: Any) -> "Iterable[RenderableType]":
        if not schemas:
            yield make_text(f"The tenant {tenant} has no keys; create one with `quire key create`.")
            return
        rows = [_format_row(each) for each in schemas]
        # Limits that no key has take no column.
        columns = [name for name in rows[0] if name not in ("models", "spent") or any(row[name] for row in rows)]
        yield make_table(
            *columns,
            rows=[[row[name] for name in columns] for row in rows],
            right_aligned=("per minute", "spent"),
            wrapped=("name", "models"),
        )
        if (spending := _format_spending(spent, cap)) is not None:
            yield make_text(f"The tenant {tenant} has spent {spending}.")

    document = {
        "tenant": tenant,
        "spent_usd": spent,
        "max_spend": cap,
        "keys": [each.model_dump(mode="json") for each in schemas],
    }
    print_result(document, draw, as_json=as_json)


def _format_row(key: "KeySchema") -> dict[str, Any]:
    until = (
        format_local_time(key.expires_at) if key.revoked_at is None else f"revoked {format_local_time(key.revoked_at)}"
    )
    return {
        "id": key.id,
        "name": key.name,
        "scopes": " ".join(key.scopes),
        "created": format_local_time(key.created_at),
        "until": until,
        "per minute": key.requests_per_minute,
        "models": " ".join(key.models) if key.models is not None else None,
        "spent": _format_spending(key.spent_usd, key.max_spend),
    }


def _format_spending(spent: float, cap: float | None) -> str | None:
    """What was spent of the cap; None if there is neither."""
    if cap is None:
        return f"${spent:,.4f}" if spent else None
    return f"${spent:,.4f} of ${cap:,.2f}"


async def _load_keys(target: CommandTarget, tenant: str, limit: int) -> "tuple[list[KeySchema], float]":
    """The newest keys with their spending, and the spending of the tenant."""
    from quire.schemas.records import KeySchema

    async with open_store(target) as store:
        own = store.for_tenant(tenant)
        keys, spending = await own.list_keys(limit=limit), await own.get_spending()
    schemas = [KeySchema.from_record(each, spent_usd=spending.get(each.id, 0.0)) for each in keys]
    return schemas, sum(spending.values())


@command(app, "quire key revoke 01ke6pfy600000000000000005")
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `list` shows it.")],
    *,
    tenant: TenantOption = DEFAULT_TENANT,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Revoke an API key; a running server rejects it within ten seconds."""
    revoked = run_async(_revoke_key(make_target(overrides=overrides), tenant, key))
    line = f"Revoked {revoked.id} ({revoked.name})."
    document = {"tenant": tenant} | revoked.model_dump(mode="json")
    print_result(document, lambda _: [make_text(line)], as_json=as_json)


async def _revoke_key(target: CommandTarget, tenant: str, id: str) -> "KeySchema":
    from quire.schemas.records import KeySchema

    async with open_store(target) as store:
        own = store.for_tenant(tenant)
        revoked, spending = await own.revoke_key(id), await own.get_spending()
    return KeySchema.from_record(revoked, spent_usd=spending.get(id, 0.0))
