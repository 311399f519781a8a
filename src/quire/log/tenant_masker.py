"""Masking in the functions that write rows: the masker of the transaction's tenant, if its secrets are masked.

Every function that stores text of users, agents or models masks it here, before it computes a digest.
"""

from operator import attrgetter
from typing import NamedTuple

from sqlalchemy import Connection

from quire.db.store_part import MASKER_KEY
from quire.log.body_deltas import find_change
from quire.log.secret_masker import SecretMasker
from quire.model.secrets import MAX_SPLIT_CHARS, SecretMatch, merge_matches, replace_secrets


def get_masker(connection: Connection) -> SecretMasker | None:
    """The masker of the tenant that writes, or None for most tenants."""
    return connection.info.get(MASKER_KEY)


def mask_text(connection: Connection, text: str) -> str:
    """Masks a text, or a JSON document, of a tenant whose secrets are masked."""
    masker = get_masker(connection)
    return text if masker is None else masker.mask_text(text)


class MaskedBody(NamedTuple):
    """The body of a request, and the secrets in it, with which the next body of the conversation is masked."""

    text: str
    secrets: list[SecretMatch]

    def encode(self) -> bytes:
        """The body as it is stored."""
        return replace_secrets(self.text, self.secrets).encode(errors="surrogateescape")


def mask_sent_body(masker: SecretMasker, content: bytes, base: MaskedBody | None) -> MaskedBody:
    """Finds the secrets of a body. Only what differs from the base is searched: agents send the whole history again.

    The searched part extends to where the base has no secret, and further by the longest text that decides whether
    something is one.
    """
    text = content.decode(errors="surrogateescape")
    if base is None:
        return MaskedBody(text, masker.find_secrets(text))
    change_start, change_end = find_change(base.text, text)
    shift = len(text) - len(base.text)
    moved = [each._replace(start=each.start + shift, end=each.end + shift) for each in base.secrets]
    first, last = max(0, change_start - MAX_SPLIT_CHARS), min(len(text), change_end + MAX_SPLIT_CHARS)
    first = next((each.start for each in base.secrets if each.start < first < each.end), first)
    last = next((each.end for each in moved if each.start < last < each.end), last)
    start, end = max(0, first - MAX_SPLIT_CHARS), min(len(text), last + MAX_SPLIT_CHARS)
    found = (
        each._replace(start=each.start + start, end=each.end + start) for each in masker.find_secrets(text[start:end])
    )
    secrets = [
        *(each for each in base.secrets if each.end <= first),
        *(each for each in found if each.end > first and each.start < last),
        *(each for each in moved if each.start >= last),
    ]
    return MaskedBody(text, merge_matches(sorted(secrets, key=attrgetter("start"))))
