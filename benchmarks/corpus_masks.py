"""Masks what stored sessions may hold of people and their accounts: keys, passwords in addresses, e-mail addresses.

A mask ends with the first digits of a digest of what it replaces, so that equal texts stay equal. Addresses that are
nobody's stay: those of examples, of `git@` and `noreply@`, and those at GitHub itself.
"""

import re
from hashlib import sha256

_KEYS = re.compile(
    rb"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"  # JSON web tokens
    rb"|sk-(?:ant|proj|svcacct|or)-[\w-]{16,}|sk-[A-Za-z0-9]{32,}|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}"
    rb"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}"
    rb"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}"
    rb"|xox[abprs]-[\w-]{10,}|pypi-[\w-]{50,}|dop_v1_[a-f0-9]{64}|SG\.[\w-]{20,}\.[\w-]{20,}|key-[a-f0-9]{32}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?=-----END)"
    rb"|[a-z][a-z0-9+]*://[\w.%+-]+:[^\s/@\"'\\<>${}]{3,}@[\w.-]+",  # addresses with a password
    re.DOTALL,
)
_ADDRESSES = re.compile(rb"(?<!\\)[A-Za-z0-9._+-]{2,}@([\w-]+(?:\.[\w-]+)?\.[a-z]{2,})")
_KEPT_STARTS = (b"noreply@", b"git@")
_KEPT_DOMAINS = re.compile(rb"example\.|(?:^|\.)anthropic\.com$|^github\.com$")


def mask(data: bytes) -> bytes:
    return _ADDRESSES.sub(_mask_address, _KEYS.sub(_mask_key, data))


def _mask_key(found: re.Match[bytes]) -> bytes:
    return b"MASKED-" + sha256(found[0]).hexdigest()[:10].encode()


def _mask_address(found: re.Match[bytes]) -> bytes:
    if found[0].startswith(_KEPT_STARTS) or _KEPT_DOMAINS.search(found[1]):
        return found[0]
    return b"person-" + sha256(found[0]).hexdigest()[:6].encode() + b"@example.org"
