"""`quire tenant`: whole tenants, for backups and for moves between databases, such as from SQLite to PostgreSQL."""

import asyncio
import gzip
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import (
    EXIT_FAILED,
    SetOptions,
    TenantOption,
    Yes,
    command,
    confirm,
    create_group,
    list_conversation_ids,
    open_store,
)
from quire.cli.conversation import draw_faults, find_faults
from quire.cli.output import (
    Result,
    format_local_time,
    make_table,
    make_text,
    pluralize,
    print_note,
    show_progress,
)
from quire.errors import InvalidRequest, MissingExtra, StoreError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.schemas.records import TenantListSchema

app = create_group("List, export, import, verify, move and purge whole tenants, and rewrap their keys.")

COMPRESSION_LEVEL = 6
MAX_TIME = 2**63 - 1


@command(app, "quire tenant list", name="list")
async def list_(*, overrides: SetOptions = None) -> Result:
    """List tenants that have conversations, with their number and when they were last used."""
    from quire.schemas.records import TenantListSchema, TenantSchema

    counts, last_used = Counter[str](), dict[str, int]()
    cells = dict[str, str | None]()
    async with open_store(overrides) as store:
        for part in store.all_tenants.list_parts():
            page = None
            while found := await part.list_updated_conversations(since=0, until=MAX_TIME, after=page):
                page = found[-1]
                for tenant in {each.tenant for each in found} - cells.keys():
                    cells[tenant] = await store.find_cell(tenant)
                # A cell may still have the rows of a tenant that has moved.
                own = [each for each in found if cells[each.tenant] == part.cell]
                counts.update(each.tenant for each in own)
                last_used |= {each.tenant: each.updated_at for each in own}
    tenants = [
        TenantSchema(name=name, conversations=counts[name], updated_at=last_used[name], cell=cells[name])
        for name in counts
    ]
    document = TenantListSchema(tenants=sorted(tenants, key=lambda each: each.name))
    return Result(document, lambda _: _draw_tenants(document))


def _draw_tenants(document: "TenantListSchema") -> "Iterable[RenderableType]":
    if not document.tenants:
        yield make_text("No tenant has a conversation yet.")
        return
    rows = [
        (each.name, f"{each.conversations:,}", format_local_time(each.updated_at), each.cell)
        for each in document.tenants
    ]
    columns = ("tenant", "conversations", "last used", "cell")
    if all(each.cell is None for each in document.tenants):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    yield make_table(*columns, rows=rows, right_aligned=("conversations",))


@command(app, "quire tenant export tenant.jsonl.gz")
async def export(
    file: Annotated[Path, typer.Argument(help="The archive to write, compressed with gzip.")],
    *,
    tenant: TenantOption = None,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    overrides: SetOptions = None,
) -> Result:
    """Export everything of a tenant into one file: conversations, files, keys, memories, costs and the search index.

    The archive is a snapshot: the server may go on while it is written. It contains all text and the digests of keys,
    so protect it like the database.
    """
    from quire.schemas.records import TenantArchiveSchema

    if file.exists() and not force:
        raise InvalidRequest(f"{file} already exists. Choose another name, or overwrite it with --force.")
    part = file.with_name(f"{file.name}.part")
    async with open_store(overrides, tenant=tenant) as store:
        try:
            with show_progress("Exporting"), gzip.open(part, "wt", COMPRESSION_LEVEL, encoding="utf-8") as stream:
                archive = await store.lagging().export_tenant(stream.write)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    document = TenantArchiveSchema(file=str(file), **archive._asdict())
    conversations = pluralize(document.conversations, "conversation")
    return Result(document, f"Exported {conversations} of {store.tenant} with {document.rows:,} rows to {file}.")


@command(app, "quire tenant import tenant.jsonl.gz --tenant observatory", name="import")
async def import_(
    file: Annotated[Path, typer.Argument(help="An archive from `quire tenant export`.", exists=True, dir_okay=False)],
    *,
    tenant: TenantOption = None,
    overrides: SetOptions = None,
) -> Result:
    """Import an archive as a new tenant, all of it or nothing, and verify every digest.

    The archive may come from the other kind of database. Its schema must be the one of this version.
    """
    from quire.schemas.records import TenantArchiveSchema

    async with open_store(overrides, tenant=tenant) as store:
        with show_progress("Importing"), gzip.open(file, "rt", encoding="utf-8") as stream:
            try:
                archive = await store.import_tenant(stream)
            except (gzip.BadGzipFile, EOFError, UnicodeDecodeError) as error:
                raise InvalidRequest(f"{file} is no complete archive of a tenant: {error}.") from error
        document = TenantArchiveSchema(file=str(file), **archive._asdict())
        faults = await find_faults(store, await list_conversation_ids(store), with_tenant=True)
    if document.skipped_keys:
        print_note(f"Left out {pluralize(document.skipped_keys, 'API key')} that another tenant of this database has.")
    if faults:
        print_note(f"{pluralize(len(faults), 'fault')} found. `quire tenant verify {store.tenant}` lists them.")
    conversations = pluralize(document.conversations, "conversation")
    text = f"Imported {conversations} with {document.rows:,} rows as {store.tenant}, and verified them."
    return Result(document, text if not faults else "", exit_code=EXIT_FAILED if faults else 0)


@command(app, "quire tenant verify observatory")
async def verify(
    tenant: Annotated[
        str | None, typer.Argument(help="The tenant to verify. Default: the setting `tenant`.", show_default=False)
    ] = None,
    *,
    overrides: SetOptions = None,
) -> Result:
    """Verify every digest of a tenant: all conversations, memories, keys and the audit trail.

    The exit code is 1 if a row was changed.
    """
    from quire.schemas.records import LocatedFaultSchema, VerifiedTenantSchema

    async with open_store(overrides, tenant=tenant) as store:
        ids = await list_conversation_ids(store)
        faults = await find_faults(store, ids, with_tenant=True)
        for each in await store.audit.verify():
            faults.append(
                LocatedFaultSchema(conversation=None, branch=None, seq=each.seq, problem=f"audit: {each.reason}")
            )
        head = await store.audit.get_head()
    document = VerifiedTenantSchema(tenant=store.tenant, conversations=len(ids), audit_entries=head.seq, faults=faults)
    entries = pluralize(document.audit_entries, "audit entry")
    text = f"Verified {pluralize(len(ids), 'conversation')} and {entries} of {store.tenant}: nothing was changed."
    return Result(
        document,
        lambda _: draw_faults(faults) if faults else [make_text(text)],
        exit_code=EXIT_FAILED if faults else 0,
    )


@command(app, "quire tenant purge observatory --yes")
async def purge(
    tenant: Annotated[str, typer.Argument(help="The tenant to delete.")],
    *,
    yes: Yes = False,
    overrides: SetOptions = None,
) -> Result:
    """Permanently delete a tenant: conversations, files, keys, memories, costs, search index and audit trail.

    Stop using the tenant first. On PostgreSQL the database URL must be the owner's, as for `quire db upgrade`. Archives
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


@command(app, "quire tenant move observatory --to b")
async def move(
    tenant: Annotated[str, typer.Argument(help="The tenant to move, with its people.")],
    *,
    to: Annotated[str | None, typer.Option(metavar="CELL", help="The cell to move it to.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a move that was interrupted.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Return from a move that was interrupted; its copy is deleted.")
    ] = False,
    keep_source: Annotated[
        bool, typer.Option("--keep-source", help="Keep the rows in the old cell, where nothing reads them.")
    ] = False,
    overrides: SetOptions = None,
) -> Result:
    """Move a tenant to another cell while it is served, and compare every row.

    Writes of the tenant wait for a few seconds at the end. The URLs in the settings must name the owner, as for
    `quire db upgrade`. A move that was interrupted can be continued or undone.
    """
    from quire.cli.engine_setup import load_cli_settings, resolve_database_url
    from quire.schemas.records import MovedTenantSchema
    from quire.settings.schema import list_cell_urls

    settings = load_cli_settings(overrides).settings
    if [to is not None, resume, undo].count(True) != 1:
        raise InvalidRequest("Give one of --to CELL, --resume and --undo.")
    if not settings.cells:
        raise InvalidRequest("There are no cells. Name them under `cells` in the settings.")
    try:
        from quire.store.tenant_move import TenantMover
    except ImportError as missing:
        raise MissingExtra(extra="postgres", feature="Moving a tenant") from missing

    def run() -> MovedTenantSchema:
        urls = list_cell_urls(resolve_database_url(settings), settings.cells)
        with TenantMover(urls, tenant, report=print_note) as mover:
            if undo:
                return MovedTenantSchema(tenant=tenant, cell=mover.undo())
            done = mover.resume(keep_source=keep_source) if to is None else mover.start(to, keep_source=keep_source)
        return MovedTenantSchema(
            tenant=tenant,
            cell=done.target,
            conversations=done.conversations,
            rows=done.rows,
            seconds=round(done.seconds, 3),
            frozen_seconds=round(done.frozen_seconds, 3),
        )

    document = await asyncio.to_thread(run)
    if undo:
        return Result(document, f"The tenant {tenant} stays in the cell {document.cell}.")
    text = (
        f"Moved {tenant} to the cell {document.cell}: {pluralize(document.conversations, 'conversation')}, "
        f"{document.rows:,} rows in {document.seconds:.1f} s. Writes waited {document.frozen_seconds:.1f} s."
    )
    return Result(document, text)


@command(app, "quire tenant rewrap")
async def rewrap(*, overrides: SetOptions = None) -> Result:
    """Wrap the data keys of all encrypted tenants with the current key of the setting `encryption`.

    Servers go on meanwhile. Afterwards a former key is not needed any more.
    """
    from quire.schemas.records import RewrappedKeysSchema

    async with open_store(overrides) as store:
        document = RewrappedKeysSchema(tenants=await store.rewrap_keys())
    return Result(document, f"Wrapped {pluralize(len(document.tenants), 'data key')} with the current key.")
