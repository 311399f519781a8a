"""The audit trail: a hash chain in which every change is found; and people, sessions and shares of a tenant."""

import asyncio

import pytest
from sqlalchemy import Connection, delete, select, text, update

from quire.db.database import TransactionOptions
from quire.db.schema import audit, audit_heads, users
from quire.errors import SignInRefused, UserNotFound
from quire.model.ids import now
from quire.store import SqlStore
from quire.team.audit import AuditEntry
from quire.team.store import TeamStore
from quire.team.users import EVERYONE

TENANT = "harbour"
HOUR = 3_600_000_000


async def append_some(store: SqlStore, count: int) -> list[AuditEntry]:
    trail = TeamStore(store.for_tenant(TENANT)).audit
    return [
        await trail.append(f"action {each}", actor="ann", target={"conversation": f"c{each}"}, address="10.0.0.1")
        for each in range(count)
    ]


@pytest.mark.every_database
async def test_entries_are_a_chain_of_each_tenant(store: SqlStore):
    entries = await append_some(store, 3)
    own, other = TeamStore(store.for_tenant(TENANT)).audit, TeamStore(store.for_tenant("lighthouse")).audit
    assert await own.list() == entries
    assert await own.list(after=1, limit=1) == entries[1:2]
    assert (await own.get_head()) == (3, entries[-1].digest)
    assert (await own.verify(), await other.verify(), await other.list()) == ([], [], [])
    await other.append("sign_in", actor="pia", target={})
    assert [each.seq for each in await other.list()] == [1]
    assert len(await own.list()) == 3


@pytest.mark.every_database
async def test_appends_at_the_same_time_have_one_order(store: SqlStore):
    trail = TeamStore(store.for_tenant(TENANT)).audit
    await asyncio.gather(*(trail.append(f"action {each}", actor="ann", target={}) for each in range(20)))
    assert [each.seq for each in await trail.list()] == list(range(1, 21))
    assert await trail.verify() == []


def swap(connection: Connection) -> None:
    """Exchanges two entries; their numbers stay in place."""
    rows = {row.seq: dict(row._mapping) for row in connection.execute(select(audit).where(audit.c.seq.in_([2, 3])))}
    for seq, other in ((2, 3), (3, 2)):
        values = {name: value for name, value in rows[other].items() if name not in ("tenant", "seq")}
        connection.execute(update(audit).where(audit.c.seq == seq).values(values))


def insert_copy(connection: Connection) -> None:
    row = dict(connection.execute(select(audit).where(audit.c.seq == 5)).one()._mapping)
    connection.execute(audit.insert(), {**row, "seq": 6})


FORGERIES = {
    "actor": (lambda c: c.execute(update(audit).where(audit.c.seq == 2).values(actor="ben")), 2),
    "time": (lambda c: c.execute(update(audit).where(audit.c.seq == 2).values(at=1)), 2),
    "action": (lambda c: c.execute(update(audit).where(audit.c.seq == 5).values(action="read")), 5),
    "target": (lambda c: c.execute(update(audit).where(audit.c.seq == 1).values(target="{}")), 1),
    "allowed": (lambda c: c.execute(update(audit).where(audit.c.seq == 4).values(allowed=0)), 4),
    "address": (lambda c: c.execute(update(audit).where(audit.c.seq == 4).values(address="")), 4),
    "digest": (lambda c: c.execute(update(audit).where(audit.c.seq == 3).values(digest=bytes(32))), 3),
    "removed first": (lambda c: c.execute(delete(audit).where(audit.c.seq == 1)), 1),
    "removed in the middle": (lambda c: c.execute(delete(audit).where(audit.c.seq == 3)), 3),
    "removed at the end": (lambda c: c.execute(delete(audit).where(audit.c.seq >= 4)), 4),
    "removed all": (lambda c: c.execute(delete(audit)), 1),
    "reordered": (swap, 2),
    "inserted": (insert_copy, 6),
    "head": (lambda c: c.execute(update(audit_heads).values(digest=bytes(32))), 5),
    "head lowered": (lambda c: c.execute(update(audit_heads).values(seq=4)), 5),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_changed_removed_or_moved_entry_is_found(store: SqlStore, name: str):
    await append_some(store, 5)
    forge, seq = FORGERIES[name]
    await store.base.database.write(lambda connection: forge(connection), TransactionOptions(TENANT))
    [fault] = await TeamStore(store.for_tenant(TENANT)).audit.verify()
    assert fault.seq == seq


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_the_role_of_the_application_cannot_change_the_trail(store: SqlStore):
    await append_some(store, 1)
    for statement in ("UPDATE quire_audit SET actor = 'x'", "DELETE FROM quire_audit", "DELETE FROM quire_audit_heads"):
        with pytest.raises(Exception, match="permission denied"):
            await store.base.database.write(
                lambda connection, statement=statement: connection.execute(text(statement)), TransactionOptions(TENANT)
            )


async def test_people_sessions_and_shares_belong_to_one_tenant(store: SqlStore):
    own, other = TeamStore(store.for_tenant(TENANT)), TeamStore(store.for_tenant("lighthouse"))
    ann = await own.users.confirm("subject", name="Ann", email="ann@example.org", roles=["owner", "member"])
    same = await other.users.confirm("subject", name="Ann", email="ann@example.org", roles=["member"])
    assert ann.id != same.id
    assert ann.roles == {"member", "owner"}
    assert await own.users.find(ann.id) == ann
    assert (await own.users.find(same.id), await other.users.find(ann.id)) == (None, None)
    assert await own.users.find_by_email("ann@example.org") == ann
    again = await own.users.confirm("subject", name="Ann B.", email="ann@example.org", roles=["auditor"])
    assert (again.id, again.name, again.roles) == (ann.id, "Ann B.", {"auditor"})
    await own.sessions.create(b"digest", ann.id, expires_at=now() + HOUR, refresh_at=now() + HOUR, tokens="")
    assert (await own.sessions.find(b"digest")).user == again
    assert await other.sessions.find(b"digest") is None
    await own.shares.set_readers(ann.id, "c", ["ben", EVERYONE])
    assert await own.shares.list_readers(ann.id, "c") == [EVERYONE, "ben"]
    assert await other.shares.list_readers(ann.id, "c") == []
    assert {each.conversation for each in await own.shares.list_shared_with("ben")} == {"c"}
    assert await own.shares.list_shared_with(ann.id) == []
    with pytest.raises(UserNotFound):
        await other.users.set_disabled(ann.id, True)
    await own.users.set_disabled(ann.id, True)
    assert await own.sessions.find(b"digest") is None
    with pytest.raises(SignInRefused):
        await own.users.confirm("subject", name="", email="", roles=["member"])
    enabled = await own.users.set_disabled(ann.id, False)
    assert enabled.may_use_keys_at(now())


@pytest.mark.every_database
async def test_of_several_servers_one_refreshes_a_session(store: SqlStore):
    own = TeamStore(store.for_tenant(TENANT))
    ann = await own.users.confirm("subject", name="", email="", roles=["member"])
    await own.sessions.create(b"digest", ann.id, expires_at=now() + HOUR, refresh_at=1, tokens="")
    session = await own.sessions.find(b"digest")
    assert session is not None
    claims = await asyncio.gather(*(own.sessions.claim_refresh(session, now() + HOUR) for _ in range(5)))
    assert sorted(claims) == [False, False, False, False, True]


async def test_a_person_whose_row_was_changed_outside_is_nobody(store: SqlStore):
    own = TeamStore(store.for_tenant(TENANT))
    ann = await own.users.confirm("subject", name="", email="", roles=["member"])
    await store.base.database.write(
        lambda connection: connection.execute(update(users).values(roles="owner")), TransactionOptions(TENANT)
    )
    assert await own.users.find(ann.id) is None


async def test_keys_end_thirty_days_after_the_last_confirmation(store: SqlStore):
    ann = await TeamStore(store.for_tenant(TENANT)).users.confirm("subject", name="", email="", roles=["member"])
    day = 24 * HOUR
    assert ann.may_use_keys_at(ann.confirmed_at + 29 * day)
    assert not ann.may_use_keys_at(ann.confirmed_at + 30 * day)
    assert not ann._replace(roles=frozenset()).may_use_keys_at(ann.confirmed_at)
