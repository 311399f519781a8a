"""Column types: bytes without conversion, and text that is encrypted if the tenant is.

A transaction of an encrypted tenant runs with the tenant's cipher in `current_cipher`. The types encrypt parameters and
decrypt results of SQLAlchemy's statements; `quire.db.dialects` does the same for rows that bypass it. An engine without
`set_encrypts` converts nothing, so that encryption costs nothing where it is off. The database cannot search in
encrypted text: `is_encrypting` says where a query has to filter in Python.

Texts and bytes are encrypted with AES-GCM and a random nonce, and authenticated with their table and column: another
column refuses the ciphertext. Earlier versions did not authenticate it, and what they stored is read as it is. Names
that queries compare for equality are encrypted with AES-SIV, which gives the same ciphertext for the same name in every
column. Empty values stay empty.
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from hashlib import sha256
from os import urandom
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Dialect, MetaData, Text, case, func
from sqlalchemy.types import TypeDecorator, UserDefinedType

from quire.errors import IntegrityViolation, MissingExtra

T = TypeVar("T")

DATA_KEY_BYTES = 96
"""32 for AES-GCM and 64 for AES-SIV, both with 256 bits."""
KEY_ID_BYTES = 6
_NONCE_BYTES = 12
_TAG_BYTES = 16
_LENGTH_BYTES = 4
_UNBOUND_TEXT_MARK, _NAME_MARK, _TEXT_MARK = "q1.", "q2.", "q3."
"""Start of an encrypted text without and with its place, and of an encrypted name, before the key's id in base64."""
_BOUND_FRAME = 1 << 31
"""Added to the length of a frame of bytes that are authenticated with their place."""


class StaleKey(IntegrityViolation):
    """A stored value was not encrypted with the tenant's current key. Its own key was destroyed."""


class ChangedCiphertext(IntegrityViolation):
    """An encrypted value is not as it was stored; restore it from a backup."""


class TenantCipher:
    """Encrypts and decrypts the stored values of one tenant with its data key."""

    is_verifying = False
    """Whether a value that cannot be decrypted is returned as it is stored, so that its digest is found wrong."""

    def __init__(self, data_key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
        except ImportError as missing:
            raise MissingExtra(extra="encryption", feature="Encryption of stored text") from missing
        key_id = sha256(data_key).digest()[:KEY_ID_BYTES]
        self.key_id, self._invalid_tag = key_id.hex(), InvalidTag
        self._gcm, self._siv = AESGCM(data_key[:32]), AESSIV(data_key[32:DATA_KEY_BYTES])
        self._key_id, encoded_id = key_id, b2a_base64(key_id, newline=False).decode()
        self._text_start, self._name_start = f"{_TEXT_MARK}{encoded_id}", f"{_NAME_MARK}{encoded_id}"
        self._unbound_start = f"{_UNBOUND_TEXT_MARK}{encoded_id}"

    def seal_text(self, text: str, place: bytes) -> str:
        nonce = urandom(_NONCE_BYTES)
        sealed = self._gcm.encrypt(nonce, text.encode(errors="surrogatepass"), place)
        return f"{self._text_start}{b2a_base64(nonce + sealed, newline=False).decode()}"

    def open_text(self, sealed: str, place: bytes) -> str:
        is_bound = sealed.startswith(self._text_start)
        if not is_bound and not sealed.startswith(self._unbound_start):
            return self._refuse(sealed, StaleKey())
        try:
            data = a2b_base64(sealed[len(self._text_start) :], strict_mode=True)
            return self._decrypt(data, place if is_bound else None).decode(errors="surrogatepass")
        except (self._invalid_tag, ValueError):
            return self._refuse(sealed, ChangedCiphertext())

    def seal_name(self, name: str) -> str:
        sealed = self._siv.encrypt(name.encode(errors="surrogatepass"), None)
        return f"{self._name_start}{b2a_base64(sealed, newline=False).decode()}"

    def open_name(self, sealed: str) -> str:
        if not sealed.startswith(self._name_start):
            return self._refuse(sealed, StaleKey())
        try:
            name = self._siv.decrypt(a2b_base64(sealed[len(self._name_start) :], strict_mode=True), None)
        except (self._invalid_tag, ValueError):
            return self._refuse(sealed, ChangedCiphertext())
        return name.decode(errors="surrogatepass")

    def seal_bytes(self, data: bytes, place: bytes) -> bytes:
        """A frame: length, id of the key, nonce, ciphertext. A row of the inverted index is a sequence of frames."""
        nonce = urandom(_NONCE_BYTES)
        frame = self._key_id + nonce + self._gcm.encrypt(nonce, data, place)
        return (len(frame) | _BOUND_FRAME).to_bytes(_LENGTH_BYTES) + frame

    def open_bytes(self, sealed: bytes, place: bytes) -> bytes:
        parts: list[bytes] = []
        start = 0
        while start < len(sealed):
            first = start + _LENGTH_BYTES
            length = int.from_bytes(sealed[start:first])
            start = first + (length & ~_BOUND_FRAME)
            if start > len(sealed) or sealed[first : first + KEY_ID_BYTES] != self._key_id:
                return self._refuse(sealed, StaleKey())
            data, bound_to = sealed[first + KEY_ID_BYTES : start], place if length & _BOUND_FRAME else None
            try:
                parts.append(self._decrypt(data, bound_to))
            except (self._invalid_tag, ValueError):
                return self._refuse(sealed, ChangedCiphertext())
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _decrypt(self, data: bytes, place: bytes | None) -> bytes:
        return self._gcm.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place)

    def _refuse(self, sealed: T, error: IntegrityViolation) -> T:
        if self.is_verifying:
            return sealed
        raise error


current_cipher: ContextVar[TenantCipher | None] = ContextVar("current_cipher", default=None)
"""Cipher of the tenant whose transaction runs, or None if it is not encrypted."""


def is_encrypting() -> bool:
    """Whether the transaction's tenant is encrypted, so that the database cannot compare parts of its texts."""
    return current_cipher.get() is not None


@contextmanager
def verify_values() -> Generator[None]:
    """Returns values that cannot be decrypted as they are stored: a verification reports all faults."""
    cipher = copy(current_cipher.get())
    if cipher is not None:
        cipher.is_verifying = True
    token = current_cipher.set(cipher)
    try:
        yield
    finally:
        current_cipher.reset(token)


class Bytes(UserDefinedType[bytes]):
    """Binary column without conversion. SQLAlchemy's own type would copy every value."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "BLOB"


Converter = Callable[[TenantCipher, Any], Any]

_ENCRYPTS = "quire_encrypts"


def set_encrypts(dialect: Dialect, *, value: bool) -> None:
    """Says whether transactions of this engine may have a cipher; to be called before its first statement."""
    setattr(dialect, _ENCRYPTS, value)


def _build_processor(convert: Converter, dialect: Dialect) -> Callable[[Any], Any] | None:
    if not getattr(dialect, _ENCRYPTS, False):
        return None

    def process(value: Any) -> Any:
        cipher = current_cipher.get()
        return convert(cipher, value) if cipher is not None and value else value

    return process


class Sealed:
    """A type whose values are encrypted for an encrypted tenant.

    `place` is the table and the column. It is a parameter, so that SQLAlchemy caches statements of each place apart.
    """

    def __init__(self, place: bytes = b"") -> None:
        super().__init__()
        self.place = place

    def seal(self, cipher: TenantCipher, value: Any) -> Any:
        raise NotImplementedError

    def open(self, cipher: TenantCipher, sealed: Any) -> Any:
        raise NotImplementedError

    def bind_processor(self, dialect: Dialect) -> Any:
        return _build_processor(self.seal, dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        return _build_processor(self.open, dialect)


class SealedText(Sealed, TypeDecorator[str]):
    """Text that is encrypted for an encrypted tenant. Queries cannot compare it."""

    impl = Text
    cache_ok = True

    def seal(self, cipher: TenantCipher, value: str) -> str:
        return cipher.seal_text(value, self.place)

    def open(self, cipher: TenantCipher, sealed: str) -> str:
        return cipher.open_text(sealed, self.place)


class SealedName(SealedText):
    """A name that is encrypted for an encrypted tenant. Queries can compare it for equality, but not order it."""

    cache_ok = True

    def seal(self, cipher: TenantCipher, value: str) -> str:
        return cipher.seal_name(value)

    def open(self, cipher: TenantCipher, sealed: str) -> str:
        return cipher.open_name(sealed)


class SealedScope(SealedName):
    """A search scope such as `memory:default`, whose kind stays readable: queries select scopes by it."""

    cache_ok = True

    def seal(self, cipher: TenantCipher, value: str) -> str:
        kind, colon, name = value.partition(":")
        return f"{kind}{colon}{cipher.seal_name(name)}" if name else value

    def open(self, cipher: TenantCipher, sealed: str) -> str:
        kind, colon, name = sealed.partition(":")
        return f"{kind}{colon}{cipher.open_name(name)}" if name else sealed


VECTOR_TERM_PREFIX = "vector:"
"""Start of a term that has the vectors of an embedder. A word has no colon."""


class SealedTerm(SealedName):
    """A word of the inverted index, or the name of an embedder, which stays readable."""

    cache_ok = True

    def seal(self, cipher: TenantCipher, value: str) -> str:
        return value if value.startswith(VECTOR_TERM_PREFIX) else cipher.seal_name(value)

    def open(self, cipher: TenantCipher, sealed: str) -> str:
        return sealed if sealed.startswith(VECTOR_TERM_PREFIX) else cipher.open_name(sealed)


class SealedBytes(Sealed, Bytes):
    """Bytes that are encrypted for an encrypted tenant."""

    cache_ok = True

    def seal(self, cipher: TenantCipher, value: bytes) -> bytes:
        return cipher.seal_bytes(value, self.place)

    def open(self, cipher: TenantCipher, sealed: bytes) -> bytes:
        return cipher.open_bytes(sealed, self.place)


def bind_places(metadata: MetaData) -> None:
    """Sets the place of each column of these tables."""
    for table in metadata.tables.values():
        for column in table.c:
            if isinstance(column.type, Sealed) and not column.type.place:
                column.type.place = f"{table.name}.{column.name}".encode()


def seal_value(column: ColumnElement[Any], value: Any) -> Any:
    """The value as this column stores it in the current transaction."""
    cipher, sealed = current_cipher.get(), column.type
    return sealed.seal(cipher, value) if cipher is not None and value and isinstance(sealed, Sealed) else value


def open_value(column: ColumnElement[Any], stored: Any) -> Any:
    """The value that this column stores."""
    cipher, sealed = current_cipher.get(), column.type
    return sealed.open(cipher, stored) if cipher is not None and stored and isinstance(sealed, Sealed) else stored


def measure_plaintext(column: ColumnElement[Any], stored_bytes: ColumnElement[int]) -> ColumnElement[int]:
    """Bytes of a value of an encrypted tenant before it was encrypted, from the bytes that are stored, in SQL."""
    overhead = KEY_ID_BYTES + _NONCE_BYTES + _TAG_BYTES
    if isinstance(column.type, SealedBytes):
        return case((stored_bytes == 0, 0), else_=stored_bytes - _LENGTH_BYTES - overhead)
    unpadded = func.length(func.rtrim(column, "=", type_=Text())) - len(_TEXT_MARK)
    return case((stored_bytes == 0, 0), else_=unpadded * 3 // 4 - overhead)
