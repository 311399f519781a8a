"""Key-encryption keys of encrypted tenants: from a file, an environment variable, or a key management service."""

import os
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.db.tenant_keys import KeyWrapper
from quire.errors import InvalidConfiguration, MissingExtra
from quire.settings.schema import Encryption

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

COMMAND_SECONDS = 30.0
"""Maximum time of the program that wraps or unwraps a key."""
_KEK_BYTES = 32
_NONCE_BYTES = 12


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
