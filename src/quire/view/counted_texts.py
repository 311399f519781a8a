"""Token counts of fixed texts: the definitions of the tools that read the history, for OpenAI's vocabularies.

These are often the only texts of a request that were not counted when they were stored, and loading a vocabulary takes
longer than a short command. A test counts them again.
"""

from collections.abc import Mapping
from hashlib import sha256

COUNTED_TEXTS: Mapping[str, Mapping[str, int]] = {
    "cl100k_base": {
        "46044d469339": 21,
        "5ecb511ec338": 14,
        "3d53c6c0e70e": 5,
        "03ca2c54d0be": 8,
        "8786bc7960c0": 17,
        "b70ebb7199d6": 15,
        "ca3dee54e767": 11,
        "e0434daf1a8f": 9,
        "c1ef1bce996a": 13,
        "a3017c11afc3": 25,
    },
    "o200k_base": {
        "46044d469339": 21,
        "5ecb511ec338": 14,
        "3d53c6c0e70e": 5,
        "03ca2c54d0be": 8,
        "8786bc7960c0": 17,
        "b70ebb7199d6": 15,
        "ca3dee54e767": 11,
        "e0434daf1a8f": 9,
        "c1ef1bce996a": 13,
        "a3017c11afc3": 26,
    },
}
"""Tokens by vocabulary and digest of the text."""


def find_counted_text(vocabulary: str, text: str) -> int | None:
    """Tokens of the text in this vocabulary; None if they are not in the table."""
    counts = COUNTED_TEXTS.get(vocabulary)
    return counts.get(digest_text(text)) if counts is not None else None


def digest_text(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
