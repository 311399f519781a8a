"""`quire key`: API keys of the server, with tenant, scopes, expiry and rate limit."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import SetOptions, TenantOption, command, create_group, open_store
from quire.cli.output import Result, Verbatim, format_local_time, make_table, make_text, print_note
from quire.errors import format_usd

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.schemas.records import KeyListSchema

app = create_group("Manage API keys of the server.")

KEY_PAGE_SIZE = 200
_UNIT_SECONDS = {"h": 3_600, "d": 86_400, "w": 604_800}
_MAX_PERIOD_SECONDS = 100 * 366 * _UNIT_SECONDS["d"]
"""Longest validity of a key: a hundred years."""


@command(app, "quire key create telescope --scope read --scope chat --expires 90d")
async def create(
    name: Annotated[str, typer.Argument(help="A label, such as the program that uses the key.")],
    *,
    scope: Annotated[
        list[str],
        typer.Option(metavar="SCOPE", help="A scope: read, write, chat, approve, admin or scim. Repeatable."),
    ],
    tenant: TenantOption = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="Validity: 12h, 90d, 4w. Default: until revoked.", show_default=False),
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(min=1, help="Rate limit. Default: the one in the settings.", show_default=False),
    ] = None,
    max_spend: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS", help="Maximum cost of all calls in US dollars. Default: no cap.", show_default=False
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="A model that the key may call, or a pattern such as 'gpt-4o*'. Repeatable. Default: all models.",
            show_default=False,
        ),
    ] = None,
    overrides: SetOptions = None,
) -> Result:
    """Create an API key and print it once: only its digest is stored."""
    from quire.model.ids import now
    from quire.schemas.records import CreatedKeySchema

    expires_at = None
    if expires is not None:
        match = re.fullmatch(r"([1-9][0-9]{0,8})([hdw])", expires, re.ASCII)
        seconds = int(match[1]) * _UNIT_SECONDS[match[2]] if match is not None else 0
        if not 0 < seconds <= _MAX_PERIOD_SECONDS:
            raise typer.BadParameter("use hours, days or weeks, such as 12h, 90d or 4w.")
        expires_at = now() + seconds * 1_000_000
    async with open_store(overrides, tenant=tenant) as store:
        key, secret = await store.keys.create(
            name,
            scope,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            max_spend=max_spend,
            models=model or None,
        )
    until = f"until {format_local_time(key.expires_at)}" if key.expires_at is not None else "until revoked"
    print_note(
        f"API key {key.name!r} of tenant {store.tenant}, valid {until}. Copy it now: it cannot be printed again."
    )
    document = {"tenant": store.tenant, **dict(CreatedKeySchema.from_secret(key, secret))}
    # Without a table, which would wrap the key on a narrow terminal.
    return Result(document, lambda _: [Verbatim(secret)])


@command(app, "quire key list", name="list")
async def list_(*, tenant: TenantOption = None, overrides: SetOptions = None) -> Result:
    """List a tenant's API keys without their secrets, the newest first, and what was spent with them.

    The keys of ended runs (`quire run`) are not listed.
    """
    from quire.access.keys import ApiKey
    from quire.cli.agent_programs import RUN_KEY_PREFIX
    from quire.cli.engine_setup import load_cli_settings
    from quire.schemas.records import KeyListSchema, KeySchema
    from quire.settings.schema import tenant_quota_for

    async with open_store(overrides, tenant=tenant) as store:
        spending, keys, last = await store.spending.sum_by_key(), list[ApiKey](), None
        while page := await store.keys.list(limit=KEY_PAGE_SIZE, before=last):
            keys += [each for each in page if each.revoked_at is None or not each.name.startswith(RUN_KEY_PREFIX)]
            last = page[-1]
    document = KeyListSchema(
        tenant=store.tenant,
        spent_usd=sum(spending.values()),
        max_spend=tenant_quota_for(load_cli_settings(overrides).settings, store.tenant).max_spend,
        keys=[KeySchema.from_record(each, spent_usd=spending.get(each.id, 0.0)) for each in keys],
    )
    return Result(document, lambda _: _draw_keys(document))


def _draw_keys(document: "KeyListSchema") -> "Iterable[RenderableType]":
    if not document.keys:
        yield make_text(f"The tenant {document.tenant} has no keys; create one with `quire key create`.")
        return
    rows: list[dict[str, Any]] = [
        {
            "id": key.id,
            "name": key.name,
            "scopes": " ".join(key.scopes),
            "created": format_local_time(key.created_at),
            "until": f"revoked {format_local_time(key.revoked_at)}"
            if key.revoked_at
            else format_local_time(key.expires_at),
            "limits": "\n".join(
                filter(
                    None,
                    (
                        f"{key.requests_per_minute:,} a minute" if key.requests_per_minute is not None else None,
                        *(key.models or ()),
                        _format_spending(key.spent_usd, key.max_spend),
                    ),
                )
            ),
        }
        for key in document.keys
    ]
    columns = [name for name in rows[0] if name not in ("until", "limits") or any(row[name] for row in rows)]
    # Every column but the id wraps: a table that cut them would omit names and scopes on a terminal of 100 columns.
    yield make_table(*columns, rows=[[row[name] for name in columns] for row in rows], wrapped=columns[1:])
    if (spending := _format_spending(document.spent_usd, document.max_spend)) is not None:
        yield make_text(f"The tenant {document.tenant} has spent {spending}.")


def _format_spending(spent: float, cap: float | None) -> str | None:
    """What was spent of the cap; None if there is neither."""
    if cap is None:
        return format_usd(spent) if spent else None
    decimals = 2 if round(cap, 2) == cap else 4
    return f"{format_usd(spent)} of {format_usd(cap, decimals)}"


@command(app, "quire key revoke 01ke6pfy600000000000000005")
async def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's ID, as `list` prints it.")],
    *,
    tenant: TenantOption = None,
    overrides: SetOptions = None,
) -> Result:
    """Revoke an API key. A running server rejects it within ten seconds."""
    from quire.schemas.records import KeySchema

    async with open_store(overrides, tenant=tenant) as store:
        revoked, spending = await store.keys.revoke(key), await store.spending.sum_by_key()
    schema = KeySchema.from_record(revoked, spent_usd=spending.get(key, 0.0))
    return Result({"tenant": store.tenant, **dict(schema)}, f"Revoked {revoked.id} ({revoked.name}).")
