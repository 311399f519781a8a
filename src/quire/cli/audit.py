"""`quire audit`: verify and export the audit trail of a tenant."""

from typing import Annotated

import typer

from quire.cli.common import EXIT_FAILED, Limit, SetOptions, TenantOption, command, create_group, open_store
from quire.cli.output import Result, Verbatim, pluralize

app = create_group("Verify and export the audit trail of a server to which people sign in.")


@command(app, "quire audit verify --tenant harbour")
async def verify(*, tenant: TenantOption = None, overrides: SetOptions = None) -> Result:
    """Verify the hash chain of a tenant's audit trail; the exit code is 1 if an entry was changed or removed.

    It prints the number and digest of the last entry. Note them in another place, and compare them later: that also
    shows whether someone with access to the whole database wrote a new trail.
    """
    from quire.schemas.team import AuditFaultSchema, VerifiedAuditSchema

    async with open_store(overrides, tenant=tenant) as store:
        faults, head = await store.audit.verify(), await store.audit.get_head()
    document = VerifiedAuditSchema(
        tenant=store.tenant,
        entries=head.seq,
        head=head.digest.hex(),
        faults=[AuditFaultSchema(**each._asdict()) for each in faults],
    )
    text = f"Verified {pluralize(head.seq, 'entry')}. Head: {head.seq} {head.digest.hex()}"
    if faults:
        text = "\n".join(f"Entry {each.seq}: {each.reason}." for each in faults)
    return Result(document, text, exit_code=EXIT_FAILED if faults else 0)


@command(app, "quire audit export --tenant harbour")
async def export(
    *,
    tenant: TenantOption = None,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only entries after this number.")] = 0,
    limit: Limit = 10_000,
    overrides: SetOptions = None,
) -> Result:
    """Print the audit trail as JSON Lines, oldest first: one entry a line. `--after` continues where it ended."""
    from quire.schemas.team import AuditEntrySchema, AuditExportSchema

    async with open_store(overrides, tenant=tenant) as store:
        entries = await store.audit.list(after=after, limit=limit)
    document = AuditExportSchema(tenant=store.tenant, entries=[AuditEntrySchema.from_record(each) for each in entries])
    return Result(document, lambda _: [Verbatim(each.model_dump_json()) for each in document.entries])
