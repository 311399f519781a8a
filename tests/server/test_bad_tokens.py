"""Tokens of every wrong kind are refused, each for its own reason."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from joserfc.jwk import OctKey

from infra.token_issuer import EC_KEY, FOREIGN_EC_KEY, FOREIGN_KEY, KEY, TokenIssuer, run_token_issuer
from quire.errors import SignInRefused
from quire.settings.schema import SignIn
from quire.team.identity_provider import CLOCK_SKEW_SECONDS, MAX_TOKEN_CHARS, IdentityProvider

MakeToken = Callable[[TokenIssuer], str]


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    with run_token_issuer() as issuer:
        yield issuer


@pytest.fixture
def identity(issuer: TokenIssuer) -> IdentityProvider:
    groups = {"*": {"tenant": "harbour", "role": "member"}}
    values = {"issuer": issuer.url, "client_id": "quire", "url": "http://127.0.0.1:9", "groups": groups}
    return IdentityProvider(SignIn.model_validate(values), None)


def with_claims(**changes: Any) -> MakeToken:
    return lambda issuer: issuer.sign(changes)


def with_header(**header: Any) -> MakeToken:
    return lambda issuer: issuer.sign(header=header)


def at(offset_seconds: int) -> int:
    return int(time.time()) + offset_seconds


def encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def replace_part(index: int, text: str) -> MakeToken:
    def make(issuer: TokenIssuer) -> str:
        parts = issuer.sign().split(".")
        parts[index] = text
        return ".".join(parts)

    return make


def unsigned(algorithm: str) -> MakeToken:
    def make(issuer: TokenIssuer) -> str:
        return f"{encode({'alg': algorithm})}.{issuer.sign().split('.')[1]}."

    return make


def signed_with_public_key(issuer: TokenIssuer) -> str:
    """The classic confusion: the public key as the secret of a shared-key algorithm."""
    secret = OctKey.import_key(KEY.as_pem(private=False).hex())
    return issuer.sign(header={"alg": "HS256"}, key=secret)


PAST, FUTURE = -CLOCK_SKEW_SECONDS - 30, CLOCK_SKEW_SECONDS + 30
BAD_TOKENS: dict[str, tuple[MakeToken, str]] = {
    "empty": (lambda _: "", "cannot be read"),
    "no token": (lambda _: "quire", "cannot be read"),
    "one dot": (lambda _: "eyJh.eyJi", "cannot be read"),
    "four parts": (lambda issuer: issuer.sign() + ".x", "cannot be read"),
    "five parts, encrypted": (lambda _: "eyJhbGciOiJkaXIifQ.a.b.c.d", "cannot be read"),
    "too long": (lambda issuer: issuer.sign({"pad": "x" * MAX_TOKEN_CHARS}), "more than"),
    "header no JSON": (replace_part(0, "aGVhZGVy"), "cannot be read"),
    "header a list": (replace_part(0, encode(["RS256"])), "cannot be read"),
    "header no base64": (replace_part(0, "%%%"), "cannot be read"),
    "no algorithm": (replace_part(0, encode({"kid": "current"})), "cannot be read"),
    "alg none": (unsigned("none"), "algorithm is none of"),
    "alg None": (unsigned("None"), "algorithm is none of"),
    "alg empty": (unsigned(""), "algorithm is none of"),
    "alg HS256": (signed_with_public_key, "algorithm is none of"),
    "alg unknown": (replace_part(0, encode({"alg": "XS256", "kid": "current"})), "algorithm is none of"),
    "alg another than signed": (replace_part(0, encode({"alg": "PS256", "kid": "current"})), "signature is wrong"),
    "alg of another kind of key": (replace_part(0, encode({"alg": "ES256", "kid": "current"})), "cannot be read"),
    "claims changed": (replace_part(1, encode({"sub": "cora"})), "signature is wrong"),
    "signature changed": (replace_part(2, "AAAA"), "signature is wrong"),
    "signature missing": (replace_part(2, ""), "signature is wrong"),
    "foreign key, known name": (lambda issuer: issuer.sign(key=FOREIGN_KEY), "signature is wrong"),
    "unknown key": (with_header(kid="tomorrow"), "none of its issuer's"),
    "key unnamed": (with_header(kid=None), "none of its issuer's"),
    "key of its own in the header": (
        lambda issuer: issuer.sign(
            header={"alg": "ES256", "kid": "own", "jwk": FOREIGN_EC_KEY.as_dict(private=False)}, key=FOREIGN_EC_KEY
        ),
        "none of its issuer's",
    ),
    "critical extension": (
        replace_part(0, encode({"alg": "RS256", "kid": "current", "crit": ["tide"], "tide": 1})),
        "cannot be read",
    ),
    "access token": (with_header(typ="at+jwt"), "another type"),
    "logout token": (with_header(typ="logout+jwt"), "another type"),
    "no issuer": (with_claims(iss=None), "lacks the claim 'iss'"),
    "another issuer": (with_claims(iss="https://evil.example"), "issuer is another one"),
    "issuer as prefix": (lambda issuer: issuer.sign({"iss": f"{issuer.url}.evil.example"}), "issuer is another one"),
    "issuer a number": (with_claims(iss=7), "'iss'"),
    "no audience": (with_claims(aud=None), "lacks the claim 'aud'"),
    "another audience": (with_claims(aud="another"), "another audience"),
    "audience of others": (with_claims(aud=["another", "third"]), "another audience"),
    "audience an object": (with_claims(aud={"quire": True}), "'aud'"),
    "two audiences without client": (with_claims(aud=["quire", "another"]), "another client"),
    "another client": (with_claims(azp="another"), "another client"),
    "no subject": (with_claims(sub=None), "lacks the claim 'sub'"),
    "empty subject": (with_claims(sub=""), "'sub'"),
    "subject a number": (with_claims(sub=7), "'sub'"),
    "subject too long": (with_claims(sub="a" * 256), "'sub'"),
    "no expiry": (with_claims(exp=None), "lacks the claim 'exp'"),
    "expired": (lambda issuer: issuer.sign({"exp": at(PAST)}), "expired"),
    "expiry a text": (with_claims(exp="tomorrow"), "'exp'"),
    "expiry not a number": (
        replace_part(1, base64.urlsafe_b64encode(b'{"exp": NaN}').decode().rstrip("=")),
        "signature is wrong",
    ),
    "no time of issue": (with_claims(iat=None), "lacks the claim 'iat'"),
    "issued in the future": (lambda issuer: issuer.sign({"iat": at(FUTURE)}), "'iat'"),
    "not valid yet": (lambda issuer: issuer.sign({"nbf": at(FUTURE)}), "'nbf'"),
    "no nonce": (with_claims(nonce=None), "nonce is not the one"),
    "another nonce": (with_claims(nonce="m"), "nonce is not the one"),
    "nonce a list": (with_claims(nonce=["n"]), "nonce is not the one"),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_a_bad_token_is_refused_for_its_reason(name: str, issuer: TokenIssuer, identity: IdentityProvider):
    make, reason = BAD_TOKENS[name]
    with pytest.raises(SignInRefused, match=reason):
        await identity.verify_token(make(issuer), issuer=issuer.url, audience="quire", nonce="n")


@pytest.mark.parametrize(
    "make",
    [
        with_claims(),
        with_claims(aud=["quire"]),
        with_claims(aud=["quire", "another"], azp="quire"),
        with_header(typ="JWT"),
        # Within the tolerated difference of the clocks.
        lambda issuer: issuer.sign({"exp": at(-CLOCK_SKEW_SECONDS + 20), "iat": at(CLOCK_SKEW_SECONDS - 20)}),
        lambda issuer: issuer.sign(header={"alg": "ES256", "kid": "curve"}, key=EC_KEY),
    ],
    ids=["plain", "audiences", "authorized party", "typ", "clock skew", "elliptic curve"],
)
async def test_a_good_token_counts(make: MakeToken, issuer: TokenIssuer, identity: IdentityProvider):
    claims = await identity.verify_token(make(issuer), issuer=issuer.url, audience="quire", nonce="n")
    assert claims["sub"] == "ann"


def test_there_are_at_least_forty():
    assert len(BAD_TOKENS) >= 40
