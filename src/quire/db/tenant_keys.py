"""Data keys of encrypted tenants: created, wrapped, cached, and destroyed with their tenant.

Each encrypted tenant has one data key. The database stores it wrapped by a key-encryption key, which comes from a file,
an environment variable, or a program of a key management service. A tenant is encrypted from its first write or
never: rows that were stored before have no key, and a tenant with a key is refused where the key-encryption key is
missing, so that nothing is stored in plain text by a process with other settings.
"""

import asyncio
import os
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cachetools import LRUCache
from sqlalchemy import Connection, bindparam, select, text, update

from quire.db.column_types import DATA_KEY_BYTES, Sealed, StaleKey, TenantCipher, current_cipher
from quire.db.database import Database, TransactionOptions, Work
from quire.db.dialects import insert_or_ignore
from quire.db.schema import metadata, tenant_keys
from quire.errors import InvalidConfiguration, MissingExtra
from quire.model.ids import now
from quire.settings.schema import Encryption, is_encrypted_tenant

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

T = TypeVar("T")

MAX_CACHED_KEYS = 10_000
"""Tenants whose data key, or the fact that they have none, is cached."""
COMMAND_SECONDS = 30.0
"""Maximum time of the program that wraps or unwraps a key."""
_KEK_BYTES = 32
_NONCE_BYTES = 12

_KEY = select(tenant_keys.c.key_id, tenant_keys.c.wrapped).where(tenant_keys.c.tenant == bindparam("tenant"))
_LIST_POSTGRES = text("SELECT tenant FROM quire_list_encrypted_tenants() ORDER BY tenant")
_LIST_SQLITE = select(tenant_keys.c.tenant).order_by(tenant_keys.c.tenant)


class KeyWrapper(Protocol):
    """Wraps data keys with a key-encryption key."""

    def wrap(self, tenant: str, data_key: bytes) -> bytes: ...

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes: ...


class LocalKeys:
    """Key-encryption keys in this process. The first one wraps. The others unwrap what was wrapped before a rotation.

    They are read for each data key, so that a rotation needs no restart. The tenant's name is authenticated, so that a
    wrapped key cannot be moved to another tenant.
    """

    def __init__(self, read: Callable[[], str], *, source: str) -> None:
        self._read, self._source = read, source
        self._load()

    def _load(self) -> "list[AESGCM]":
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as missing:
            raise MissingExtra(extra="encryption", feature="Encryption of stored text") from missing
        try:
            keys = [b64decode(word, validate=True) for word in self._read().split()]
        except OSError as error:
            raise InvalidConfiguration(f"{self._source} cannot be read: {error.strerror}.") from error
        except ValueError:
            keys = []
        if not keys or any(len(key) != _KEK_BYTES for key in keys):
            raise InvalidConfiguration(
                f"{self._source} must have keys of {_KEK_BYTES} bytes in base64, the current one first. Make one with "
                "`openssl rand -base64 32`."
            )
        return [AESGCM(key) for key in keys]

    def wrap(self, tenant: str, data_key: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._load()[0].encrypt(nonce, data_key, tenant.encode())

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        for cipher in self._load():
            try:
                return cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], tenant.encode())
            except InvalidTag:
                continue
        raise InvalidConfiguration(
            f"No key of {self._source} unwraps the data key of the tenant {tenant}; add the key that wrapped it."
        )


class KeyCommand:
    """A program that wraps and unwraps keys, such as a script around a key management service.

    It is called with `wrap` or `unwrap` as last argument and the tenant in `QUIRE_TENANT`, reads base64 on its standard
    input, and prints base64.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command, self._environ = tuple(command), environ

    def wrap(self, tenant: str, data_key: bytes) -> bytes:
        return self._run("wrap", tenant, data_key)

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        return self._run("unwrap", tenant, wrapped)

    def _run(self, action: str, tenant: str, data: bytes) -> bytes:
        try:
            finished = subprocess.run(  # noqa: S603 (the command is the operator's setting)
                [*self._command, action],
                input=b64encode(data),
                env={**self._environ, "QUIRE_TENANT": tenant},
                capture_output=True,
                timeout=COMMAND_SECONDS,
                check=True,
            )
            return b64decode(finished.stdout.strip(), validate=True)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # The output of a failed program may have a key.
            reason = type(error).__name__
            raise InvalidConfiguration(
                f"The program of `encryption.key_command` did not {action} the data key of the tenant {tenant} "
                f"({reason}); run it yourself to see why."
            ) from None


def build_key_wrapper(encryption: Encryption, environ: Mapping[str, str]) -> KeyWrapper:
    """The wrapper of the key source that the settings name."""
    if encryption.key_command is not None:
        return KeyCommand(encryption.key_command, environ)
    if encryption.key_file is not None:
        path = Path(encryption.key_file).expanduser()
        return LocalKeys(path.read_text, source=f"The file {path} of `encryption.key_file`")
    name = encryption.key_env or ""
    return LocalKeys(lambda: environ.get(name, ""), source=f"The environment variable {name} of `encryption.key_env`")


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
        return cls(build_key_wrapper(encryption, environ), lambda tenant: is_encrypted_tenant(encryption, tenant))

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
