"""Objects of all tenants in S3, Google Cloud Storage, Azure or a folder. Only this package speaks to them.

An object is immutable. Its name has the digest of its bytes, which every read compares, and a random part. So no name
is used twice, and removing one object never removes another with the same bytes.
"""

import asyncio
import secrets
import string
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any, Literal

from quire.errors import IntegrityViolation, InvalidConfiguration, MissingExtra, ObjectStorageUnavailable

MAX_RETRIES = 2
RETRY_SECONDS = 10.0
"""Time in which a failed request is repeated."""
REQUEST_SECONDS = 20.0
"""Maximum time of a request with its retries, after which what waits for a server that does not answer fails."""
_PLAIN_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-_.@")

ObjectKind = Literal["blobs", "conversations"]


class ObjectStorage:
    """The objects under one URL, by tenant."""

    def __init__(self, url: str) -> None:
        """Opens `s3://bucket/prefix`, `gs://`, `az://` or `file:///folder`, with credentials from the environment."""
        try:
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as missing:
            raise MissingExtra(extra="object-storage", feature="Object storage") from missing
        retries = {"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        options: dict[str, Any] = {"mkdir": True} if url.startswith("file:") else {"retry_config": retries}
        try:
            self._store: Any = from_url(url, **options)
        except (BaseError, ValueError, OSError) as error:
            raise InvalidConfiguration(f"`object_storage_url` cannot be used: {_first_line(error)}") from error

    async def put(self, tenant: str, name: str, data: bytes) -> None:
        """Stores an object, and reads it back."""
        async with _limit_request():
            await self._store.put_async(_make_key(tenant, name), data)
        await self.get(tenant, name)

    async def get(self, tenant: str, name: str) -> bytes:
        async with _limit_request():
            result = await self._store.get_async(_make_key(tenant, name))
            return _check(name, bytes(await result.bytes_async()))

    def get_blocking(self, tenant: str, name: str) -> bytes:
        """Like `get`, in a thread without an event loop."""
        with _map_errors():
            return _check(name, bytes(self._store.get(_make_key(tenant, name)).bytes()))

    async def delete(self, tenant: str, name: str) -> None:
        """Deletes an object. One that does not exist is no error."""
        try:
            async with _limit_request():
                await self._store.delete_async(_make_key(tenant, name))
        except MissingObject:
            return

    async def list(self, tenant: str) -> dict[str, int]:
        """Names and sizes of the tenant's objects."""
        start = f"{_encode_tenant(tenant)}/"
        with _map_errors():
            pages = self._store.list(prefix=start)
            return {each["path"].removeprefix(start): each["size"] async for page in pages for each in page}


class MissingObject(IntegrityViolation):
    """An object is missing from the object storage; restore it from a backup."""


def make_object_name(kind: ObjectKind, data: bytes) -> str:
    """A new name for these bytes."""
    return f"{kind}/{sha256(data).hexdigest()}-{secrets.token_hex(8)}"


def _make_key(tenant: str, name: str) -> str:
    return f"{_encode_tenant(tenant)}/{name}"


def _encode_tenant(tenant: str) -> str:
    """The tenant as a folder. `=` introduces the bytes of a character that a key should not have, such as a slash."""
    encoded = "".join(
        each if each in _PLAIN_CHARACTERS else "".join(f"={byte:02x}" for byte in each.encode(errors="surrogatepass"))
        for each in tenant
    )
    return f"tenant-{encoded}"


def _check(name: str, data: bytes) -> bytes:
    if sha256(data).hexdigest() != name.partition("/")[2].partition("-")[0]:
        raise IntegrityViolation(f"The object {name} does not have the bytes of its digest; restore it from a backup.")
    return data


@asynccontextmanager
async def _limit_request() -> AsyncGenerator[None]:
    with _map_errors():
        async with asyncio.timeout(REQUEST_SECONDS):
            yield


@contextmanager
def _map_errors() -> Generator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        raise MissingObject(f"{MissingObject.__doc__} ({_first_line(error)})") from error
    except (BaseError, OSError) as error:
        raise ObjectStorageUnavailable(f"{ObjectStorageUnavailable.__doc__} ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
