"""What the store has of a tenant's people."""

from quire.log.types import IntegrityFault, TenantCheck
from quire.store import SqlStore
from quire.team.audit import AuditTrail
from quire.team.directory import Directory
from quire.team.users import Sessions, Shares, Users


class TeamStore:
    """People, sessions, shares, directory and audit trail of the tenant of a store."""

    def __init__(self, store: SqlStore) -> None:
        self.users = Users(store.base)
        self.directory = Directory(store.base)
        self.sessions = Sessions(store.base)
        self.shares = Shares(store.base)
        self.audit = AuditTrail(store.base)


async def check_audit_trail(store: SqlStore) -> TenantCheck:
    """Verifies the audit trail. The note names its last entry, to be compared later."""
    trail = TeamStore(store).audit
    head, faults = await trail.get_head(), await trail.verify()
    note = f"The audit trail ends with entry {head.seq:,}, {head.digest.hex()}." if head.seq else None
    return TenantCheck([IntegrityFault(None, each.seq, f"audit: {each.reason}") for each in faults], note)
