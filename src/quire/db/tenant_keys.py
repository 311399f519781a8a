"""Data keys of encrypted tenants: created, wrapped, cached, and destroyed with their tenant.

Each encrypted tenant has one data key. The database stores it wrapped by a key-encryption key, which a `KeyWrapper`
has: an entry point `quire.key_wrappers` makes it of the settings. A tenant is encrypted from its first write or never:
rows that were stored before have no key, and a tenant with a key is refused where the key-encryption key is missing, so
that nothing is stored in plain text by a process with other settings.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from cachetools import LRUCache
from sqlalchemy import Connection, bindparam, select, text, update

from quire.db.column_types import DATA_KEY_BYTES, Sealed, StaleKey, TenantCipher, current_cipher
from quire.db.database import Database, TransactionOptions, Work
from quire.db.dialects import insert_or_ignore
from quire.db.schema import metadata, tenant_keys
from quire.errors import InvalidConfiguration
from quire.model.ids import now
from quire.plugins import load_plugins
from quire.settings.schema import Encryption, is_encrypted_tenant

T = TypeVar("T")

MAX_CACHED_KEYS = 10_000
"""Tenants whose data key, or the fact that they have none, is cached."""
_KEY = select(tenant_keys.c.key_id, tenant_keys.c.wrapped).where(tenant_keys.c.tenant == bindparam("tenant"))
_LIST_POSTGRES = text("SELECT tenant FROM quire_list_encrypted_tenants() ORDER BY tenant")
_LIST_SQLITE = select(tenant_keys.c.tenant).order_by(tenant_keys.c.tenant)


class KeyWrapper(Protocol):
    """Wraps data keys with a key-encryption key."""

    def wrap(self, tenant: str, data_key: bytes) -> bytes: ...

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes: ...


class TenantKeys:
    """Ciphers of the tenants of one database."""

    def __init__(
        self, wrapper: KeyWrapper | None = None, is_encrypted: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.wrapper, self._is_encrypted = wrapper, is_encrypted
        self._ciphers: LRUCache[str, TenantCipher | None] = LRUCache(MAX_CACHED_KEYS)
        self._unused: LRUCache[str, None] = LRUCache(MAX_CACHED_KEYS)
        """Encrypted tenants that had no rows yet when they were first read."""

    @classmethod
    def from_settings(cls, encryption: Encryption | None, environ: Mapping[str, str]) -> "TenantKeys":
        if encryption is None:
            return cls()
        [build_wrapper, *_] = load_plugins("quire.key_wrappers").values()
        return cls(build_wrapper(encryption, environ), lambda tenant: is_encrypted_tenant(encryption, tenant))

    async def run(
        self,
        run: Callable[[Work[T], TransactionOptions], Any],
        database: Database,
        work: Work[T],
        options: TransactionOptions,
        *,
        writes: bool,
    ) -> T:
        """Runs a transaction with the cipher of its tenant. A key that another process replaced is read again."""
        tenant = options.tenant
        cipher = await self.find(database, tenant, writes=writes)
        if cipher is None:
            return await run(work, options)
        try:
            return await run(_with_cipher(work, tenant, cipher, writes=writes), options)
        except StaleKey:
            # Its key was destroyed by a purge, and the tenant may have a new one.
            self._ciphers.pop(tenant, None)
            cipher = await self.find(database, tenant, writes=writes)
            if cipher is None:
                return await run(work, options)
            return await run(_with_cipher(work, tenant, cipher, writes=writes), options)

    async def find(self, database: Database, tenant: str, *, writes: bool) -> TenantCipher | None:
        """The tenant's cipher, or None if it is not encrypted. The first write creates the key."""
        if tenant in self._ciphers:
            return self._ciphers[tenant]
        options = TransactionOptions(tenant, inline=True)
        stored = await database.read(lambda connection: _read_key(connection, tenant), options)
        if stored is None and self._is_encrypted(tenant):
            if writes:
                stored = await self._create(database, tenant)
            else:
                if tenant not in self._unused:
                    await database.read(lambda connection: _check_unused(connection, tenant), options)
                    self._unused[tenant] = None
                return None
        if stored is None:
            self._ciphers[tenant] = None
            return None
        if self.wrapper is None:
            raise InvalidConfiguration(
                f"The tenant {tenant} is encrypted, and this process has no key; set `encryption` as on your servers."
            )
        cipher = TenantCipher(await asyncio.to_thread(self.wrapper.unwrap, tenant, stored))
        self._ciphers[tenant] = cipher
        return cipher

    async def _create(self, database: Database, tenant: str) -> bytes:
        """Stores a new data key, unless another process does. Returns the stored one, wrapped."""
        assert self.wrapper is not None
        data_key = os.urandom(DATA_KEY_BYTES)
        wrapped = await asyncio.to_thread(self.wrapper.wrap, tenant, data_key)
        row = {"tenant": tenant, "key_id": TenantCipher(data_key).key_id, "wrapped": wrapped, "created_at": now()}

        def store(connection: Connection) -> bytes:
            _check_unused(connection, tenant)
            connection.execute(insert_or_ignore(connection, tenant_keys), row)
            return _read_key(connection, tenant) or wrapped

        return await database.write(store, TransactionOptions(tenant))

    async def rewrap(self, database: Database, tenant: str) -> bool:
        """Wraps the data key of a tenant with the current key-encryption key, or False if the tenant has none.

        The data key stays, so that servers go on meanwhile.
        """
        if self.wrapper is None:
            raise InvalidConfiguration("There is no key to wrap data keys with; set `encryption` as on your servers.")
        options = TransactionOptions(tenant)
        stored = await database.read(lambda connection: _read_key(connection, tenant), options)
        if stored is None:
            return False
        data_key = await asyncio.to_thread(self.wrapper.unwrap, tenant, stored)
        wrapped = await asyncio.to_thread(self.wrapper.wrap, tenant, data_key)
        # Not if it was purged, or rewrapped by another process, meanwhile.
        is_same = (tenant_keys.c.tenant == tenant, tenant_keys.c.wrapped == stored)
        replace = update(tenant_keys).where(*is_same).values(wrapped=wrapped)
        await database.write(lambda connection: connection.execute(replace), options)
        return True


def list_encrypted_tenants(connection: Connection, _tenant: str) -> list[str]:
    """Names of all tenants that have a data key."""
    statement = _LIST_POSTGRES if connection.dialect.name == "postgresql" else _LIST_SQLITE
    return list(connection.execute(statement).scalars())


def _with_cipher(work: Work[T], tenant: str, cipher: TenantCipher, *, writes: bool) -> Work[T]:
    def run(connection: Connection) -> T:
        if writes and connection.execute(_KEY, {"tenant": tenant}).scalars().all() != [cipher.key_id]:
            # The tenant was purged: what is encrypted with its key could not be read again.
            raise StaleKey
        token = current_cipher.set(cipher)
        try:
            return work(connection)
        finally:
            current_cipher.reset(token)

    return run


def _read_key(connection: Connection, tenant: str) -> bytes | None:
    row = connection.execute(_KEY, {"tenant": tenant}).first()
    return row.wrapped if row is not None else None


def _check_unused(connection: Connection, tenant: str) -> None:
    """Raises if rows of the tenant were stored without a key, or with one that was destroyed."""
    for table in metadata.sorted_tables:
        if not any(isinstance(column.type, Sealed) for column in table.c):
            continue
        if connection.execute(select(table.c.tenant).where(table.c.tenant == tenant).limit(1)).first() is not None:
            raise InvalidConfiguration(
                f"The tenant {tenant} has rows but no data key: they were stored before it was encrypted, or its key "
                "was destroyed. To encrypt it, export its conversations without `encryption`, purge it, and import "
                "them."
            )
