"""`quire tenant`: whole tenants."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import (
    SetOptions,
    TenantOption,
    Yes,
    command,
    confirm,
    create_group,
    open_store,
)
from quire.cli.output import (
    Result,
    Verbatim,
    format_local_time,
    make_table,
    make_text,
    pluralize,
    show_progress,
)
from quire.errors import InvalidRequest, StoreError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.schemas.records import TenantListSchema

app = create_group("List and purge whole tenants, rewrap their keys, and export their audit trail.")

AUDIT_PAGE_SIZE = 10_000
MAX_TIME = 2**63 - 1


@command(app, "quire tenant list", name="list")
async def list_(*, overrides: SetOptions = None) -> Result:
    """List tenants that have conversations, with their number and when they were last used."""
    from quire.schemas.records import TenantListSchema, TenantSchema

    counts, last_used = Counter[str](), dict[str, int]()
    async with open_store(overrides) as store:
        page = None
        while found := await store.all_tenants.list_updated_conversations(since=0, until=MAX_TIME, after=page):
            page = found[-1]
            counts.update(each.tenant for each in found)
            last_used |= {each.tenant: each.updated_at for each in found}
    tenants = [TenantSchema(name=name, conversations=counts[name], updated_at=last_used[name]) for name in counts]
    document = TenantListSchema(tenants=sorted(tenants, key=lambda each: each.name))
    return Result(document, lambda _: _draw_tenants(document))


def _draw_tenants(document: "TenantListSchema") -> "Iterable[RenderableType]":
    if not document.tenants:
        yield make_text("No tenant has a conversation yet.")
        return
    rows = [(each.name, f"{each.conversations:,}", format_local_time(each.updated_at)) for each in document.tenants]
    yield make_table("tenant", "conversations", "last used", rows=rows, right_aligned=("conversations",))


@command(app, "quire tenant purge observatory --yes")
async def purge(
    tenant: Annotated[str, typer.Argument(help="The tenant to delete.")],
    *,
    yes: Yes = False,
    overrides: SetOptions = None,
) -> Result:
    """Permanently delete a tenant: conversations, files, keys, memories, costs, search index and audit trail.

    Stop using the tenant first. On PostgreSQL the database URL must be the owner's, as for `quire db upgrade`. Exports
    and backups still have the tenant. If it is encrypted, its key is deleted too, and backups without the table of keys
    cannot be read any more.
    """
    from quire.schemas.records import PurgedTenantSchema

    async with open_store(overrides) as store:
        if not yes:
            confirm(f"Permanently delete the tenant {tenant} with all its conversations?")
        try:
            with show_progress("Purging"):
                purged = await store.for_tenant(tenant).purge_tenant()
        except StoreError as error:
            if "permission denied" not in str(error):
                raise
            raise InvalidRequest(
                "The role of this database URL may not delete entries. Name the owner's with "
                "--set database_url=postgresql://owner@host/database."
            ) from error
    document = PurgedTenantSchema(tenant=tenant, **purged._asdict())
    if not document.rows:
        raise InvalidRequest(f"There is no tenant {tenant}. `quire tenant list` lists those with conversations.")
    conversations = pluralize(document.conversations, "conversation")
    return Result(document, f"Deleted the tenant {tenant}: {conversations}, {document.rows:,} rows.")


@command(app, "quire tenant rewrap")
async def rewrap(*, overrides: SetOptions = None) -> Result:
    """Wrap the data keys of all encrypted tenants with the current key of the setting `encryption`.

    Servers go on meanwhile. Afterwards a former key is not needed any more.
    """
    from quire.schemas.records import RewrappedKeysSchema

    async with open_store(overrides) as store:
        document = RewrappedKeysSchema(tenants=await store.rewrap_keys())
    return Result(document, f"Wrapped {pluralize(len(document.tenants), 'data key')} with the current key.")


@command(app, "quire tenant audit --tenant harbour")
async def audit(
    *,
    tenant: TenantOption = None,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only entries after this number.")] = 0,
    overrides: SetOptions = None,
) -> Result:
    """Print the audit trail as JSON Lines, oldest first: one entry a line. `--after` continues where it ended."""
    from quire.team.schemas import AuditEntrySchema, AuditExportSchema
    from quire.team.store import TeamStore

    async with open_store(overrides, tenant=tenant) as store:
        entries, last = list[AuditEntrySchema](), after
        while page := await TeamStore(store).audit.list(after=last, limit=AUDIT_PAGE_SIZE):
            entries += map(AuditEntrySchema.from_record, page)
            last = page[-1].seq
    document = AuditExportSchema(tenant=store.tenant, entries=entries)
    return Result(document, lambda _: [Verbatim(each.model_dump_json()) for each in document.entries])
