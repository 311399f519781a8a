"""Masking before storage: secrets of a tenant are masked in all that is stored, and in nothing that is sent.

A masker changes values before their digests are computed, so that the log verifies. What was sent is known by the
digests of the unmasked content: the paths of a client's lists, the digest of a request's body, and of a blob.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from pydantic_core import from_json, to_json

from quire.model import Body, Message
from quire.model.secret_patterns import compile_secret_pattern
from quire.model.secrets import SecretMatch, find_secrets, mask_message, mask_secret_values, mask_secrets
from quire.settings.schema import TenantMasking, tenant_masking_for

MAX_CACHED_NAMES = 4_096


class SecretMasker:
    """Masks secrets of the known formats and of a tenant's own patterns. Masked text stays as it is."""

    def __init__(self, masking: TenantMasking) -> None:
        self._own = tuple(compile_secret_pattern(kind, text) for kind, text in masking.patterns.items())
        self.mask_name = lru_cache(MAX_CACHED_NAMES)(self.mask_text)
        """Masks a name. Requests repeat the names of tools and documents."""

    def find_secrets(self, text: str) -> list[SecretMatch]:
        return find_secrets(text, self._own)

    def mask_text(self, text: str) -> str:
        """JSON stays valid JSON."""
        return mask_secrets(text, self._own)

    def mask_json(self, text: str) -> str:
        """Masks the strings of a JSON document, each for itself. Without a secret, it is returned as it is."""
        value = from_json(text)
        masked = mask_secret_values(value, self._own)
        return text if masked == value else to_json(masked).decode()

    def mask_message(self, message: Message) -> Message:
        return mask_message(message, self._own)

    def mask_body(self, body: Body) -> Body:
        """The body of an entry."""
        if isinstance(body, Message):
            return self.mask_message(body)
        text = body.canonical_json()
        masked = self.mask_json(text)
        return body if masked == text else type(body).parse(masked)


def build_maskers(masking: Mapping[str, TenantMasking]) -> Callable[[str], SecretMasker | None]:
    """Returns the function that finds the masker of a tenant."""

    @lru_cache(maxsize=1_000)
    def find(tenant: str) -> SecretMasker | None:
        found = tenant_masking_for(masking, tenant)
        return None if found is None else SecretMasker(found)

    return find
