"""Client of the identity provider: OpenID Connect discovery, tokens, keys and the device flow.

Signatures are checked by joserfc. A token counts only after `verify_token` has checked its signature with a key of its
issuer, its algorithm, issuer, audience, times and subject.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import (
    BadSignatureError,
    ExpiredTokenError,
    InvalidClaimError,
    JoseError,
    MissingClaimError,
    UnsupportedAlgorithmError,
)
from joserfc.jwk import GuestProtocol, Key, KeySet
from joserfc.jws import extract_compact

from quire.errors import SignInRefused, SignInUnavailable
from quire.settings.schema import SignIn
from quire.team.users import MAX_SUBJECT_CHARS

SIGNATURE_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key. With a shared one, every client that knows it could make tokens."""
CLOCK_SKEW_SECONDS = 60
"""Difference between the clocks of provider and server that is tolerated."""
METADATA_SECONDS = 3_600.0
"""Seconds before discovery document and keys are fetched again; while the provider is down the old ones count."""
KEY_REFETCH_SECONDS = 10.0
"""Minimum seconds between two fetches of the keys for tokens with an unknown key: anyone can send such tokens."""
PROVIDER_TIMEOUT_SECONDS = 10.0
MAX_TOKEN_CHARS = 20_000
MAX_METADATA_BYTES = 1_000_000
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_TOKEN_TYPES = (None, "jwt")
"""Values of the header `typ`: access tokens (`at+jwt`) and logout tokens are no proof of a sign-in."""


class ProviderTokens(NamedTuple):
    id_token: str | None
    refresh_token: str | None
    access_token: str | None


class WorkloadIdentity(NamedTuple):
    subject: str
    tenant: str


class DevicePending(Exception):
    """The person has not finished the sign-in in the browser yet."""

    def __init__(self, *, slow_down: bool) -> None:
        self.slow_down = slow_down
        super().__init__()


class _UnknownKey(Exception):
    """The keys have none for a token."""


GetJson = Callable[[str], Awaitable[dict[str, Any]]]


class _Fetched(NamedTuple):
    metadata: dict[str, Any]
    keys: KeySet
    at: float


class _Issuer:
    """Discovery document and keys of an issuer, cached."""

    def __init__(self, issuer: str, get_json: GetJson, clock: Callable[[], float]) -> None:
        self._issuer, self._get_json, self._clock = issuer, get_json, clock
        self._fetched: _Fetched | None = None

    async def load(self, *, max_age_seconds: float = METADATA_SECONDS) -> _Fetched:
        cached = self._fetched
        if cached is not None and self._clock() - cached.at < max_age_seconds:
            return cached
        try:
            metadata = await self._get_json(f"{self._issuer}/.well-known/openid-configuration")
            if str(metadata.get("issuer", "")).rstrip("/") != self._issuer:
                raise SignInUnavailable(
                    f"{self._issuer} says that it is another issuer; correct the setting `sign_in`."
                )
            keys = _parse_keys(await self._get_json(str(metadata["jwks_uri"])))
        except (SignInUnavailable, KeyError) as error:
            if cached is None:
                raise SignInUnavailable(f"The identity provider {self._issuer} cannot be used: {error}") from error
            return cached
        self._fetched = _Fetched(metadata, keys, self._clock())
        return self._fetched


class IdentityProvider:
    """The identity provider of the settings, and the platforms whose tokens replace API keys."""

    def __init__(
        self, sign_in: SignIn, client_secret: str | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sign_in, self._client_secret = sign_in, client_secret
        self.redirect_uri = f"{sign_in.url}/auth/callback"
        self._client: httpx2.AsyncClient | None = None
        issuers = dict.fromkeys((sign_in.issuer, *(each.rstrip("/") for each in sign_in.workloads)))
        self._issuers = {each: _Issuer(each, self._get_json, clock) for each in issuers}

    async def make_authorization_url(self, *, state: str, nonce: str, code_challenge: str) -> str:
        metadata = (await self._issuers[self._sign_in.issuer].load()).metadata
        parameters = {
            "response_type": "code",
            "client_id": self._sign_in.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self._choose_scope(metadata),
            "state": state,
            "nonce": nonce,
            "code_challenge": code_challenge,
            "code_challenge_method": "S256",
        }
        return _add_query(_require_endpoint(metadata, "authorization_endpoint"), parameters)

    async def exchange_code(self, code: str, code_verifier: str) -> ProviderTokens:
        return await self._request_tokens(
            grant_type="authorization_code", code=code, redirect_uri=self.redirect_uri, code_verifier=code_verifier
        )

    async def refresh(self, refresh_token: str) -> ProviderTokens:
        return await self._request_tokens(grant_type="refresh_token", refresh_token=refresh_token)

    async def start_device_flow(self) -> dict[str, Any]:
        """Codes of the device flow (RFC 8628), as the provider answers."""
        metadata = (await self._issuers[self._sign_in.issuer].load()).metadata
        endpoint = _require_endpoint(metadata, "device_authorization_endpoint")
        answer = await self._post(endpoint, {"scope": self._choose_scope(metadata)})
        if not {"device_code", "user_code", "verification_uri"} <= answer.keys():
            raise SignInRefused(f"The provider refuses the device flow: {_describe_refusal(answer)}.")
        return answer

    async def poll_device_flow(self, device_code: str) -> ProviderTokens:
        """The tokens, once the person has signed in. Raises `DevicePending` until then."""
        return await self._request_tokens(grant_type=DEVICE_GRANT, device_code=device_code)

    async def make_logout_url(self, id_token: str | None) -> str | None:
        """Where the browser ends the session at the provider too, or None if the provider has no such page."""
        metadata = (await self._issuers[self._sign_in.issuer].load()).metadata
        endpoint = metadata.get("end_session_endpoint")
        if not isinstance(endpoint, str):
            return None
        parameters = {"client_id": self._sign_in.client_id, "post_logout_redirect_uri": f"{self._sign_in.url}/auth/out"}
        return _add_query(endpoint, parameters | ({"id_token_hint": id_token} if id_token else {}))

    async def load_claims(self, tokens: ProviderTokens, *, nonce: str | None) -> dict[str, Any]:
        """Claims of a verified ID token. Those on groups, name and email also from the provider's userinfo."""
        if tokens.id_token is None:
            raise SignInRefused("The provider sent no ID token; allow the scope openid for this client.")
        issuer = self._sign_in.issuer
        claims = await self.verify_token(tokens.id_token, issuer=issuer, audience=self._sign_in.client_id, nonce=nonce)
        if self._sign_in.groups_claim in claims and "email" in claims:
            return claims
        more = await self.load_userinfo(tokens.access_token)
        if not more:
            return claims
        if more.get("sub") != claims["sub"]:
            raise SignInRefused("The provider's userinfo is about another person than its ID token.")
        return {**more, **claims}

    async def load_userinfo(self, access_token: str | None) -> dict[str, Any]:
        """What the provider says of the person with this token; nothing if it has no such endpoint."""
        endpoint = (await self._issuers[self._sign_in.issuer].load()).metadata.get("userinfo_endpoint")
        if access_token is None or not isinstance(endpoint, str):
            return {}
        return await self._get_json(endpoint, headers={"Authorization": f"Bearer {access_token}"})

    async def verify_workload(self, token: str) -> WorkloadIdentity:
        """The program that presents a token of its platform, by the setting `sign_in.workloads`."""
        for issuer, workloads in self._sign_in.workloads.items():
            if _read_unverified_issuer(token) not in (issuer, issuer.rstrip("/")):
                continue
            claims = await self.verify_token(token, issuer=issuer.rstrip("/"), audience=workloads.audience)
            for pattern, tenant in workloads.subjects.items():
                if fnmatchcase(claims["sub"], pattern):
                    return WorkloadIdentity(claims["sub"], tenant)
            raise SignInRefused(f"The subject {claims['sub']!r} has no tenant; name it in `sign_in.workloads`.")
        raise SignInRefused("The token's issuer is none of those in `sign_in.workloads`.")

    async def verify_token(self, token: str, *, issuer: str, audience: str, nonce: str | None = None) -> dict[str, Any]:
        """Claims of a token of this issuer for this audience. Raises `SignInRefused` with the reason."""
        if len(token) > MAX_TOKEN_CHARS:
            raise SignInRefused(f"The token has more than {MAX_TOKEN_CHARS:,} characters.")
        keys = (await self._issuers[issuer].load()).keys
        try:
            decoded = _decode(token, keys)
        except _UnknownKey:
            # The provider may have changed its keys since.
            keys = (await self._issuers[issuer].load(max_age_seconds=KEY_REFETCH_SECONDS)).keys
            try:
                decoded = _decode(token, keys)
            except _UnknownKey:
                raise SignInRefused("The token is signed with a key that is none of its issuer's.") from None
        _check_claims(decoded, issuer=issuer, audience=audience, nonce=nonce)
        return decoded.claims

    def _choose_scope(self, metadata: Mapping[str, Any]) -> str:
        supported = cast("Sequence[str]", metadata.get("scopes_supported") or ())
        optional = ("profile", "email", "groups", "offline_access")
        return " ".join(["openid", *(each for each in optional if each in supported)])

    async def _request_tokens(self, **fields: str) -> ProviderTokens:
        metadata = (await self._issuers[self._sign_in.issuer].load()).metadata
        answer = await self._post(_require_endpoint(metadata, "token_endpoint"), fields)
        if (error := answer.get("error")) is not None:
            if error in ("authorization_pending", "slow_down"):
                raise DevicePending(slow_down=error == "slow_down")
            raise SignInRefused(f"The provider refuses the sign-in: {_describe_refusal(answer)}.")
        return ProviderTokens(*(answer.get(name) for name in ProviderTokens._fields))

    async def _post(self, url: str, fields: Mapping[str, str]) -> dict[str, Any]:
        auth = None
        if self._client_secret is not None:
            # RFC 6749, section 2.3.1: both are form-encoded first.
            auth = (quote(self._sign_in.client_id, safe=""), quote(self._client_secret, safe=""))
        body = {**fields, "client_id": self._sign_in.client_id}
        return await self._fetch("POST", url, data=body, auth=auth)

    async def _get_json(self, url: str, **options: Any) -> dict[str, Any]:
        return await self._fetch("GET", url, **options)

    async def _fetch(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        if self._client is None:
            # One client, because each reads the certificates of authorities. It holds no connection between requests.
            limits = httpx2.Limits(max_keepalive_connections=0)
            self._client = httpx2.AsyncClient(timeout=PROVIDER_TIMEOUT_SECONDS, limits=limits)
        try:
            response = await self._client.request(method, url, **options)
            if response.status_code >= 500 or len(response.content) > MAX_METADATA_BYTES:
                raise SignInUnavailable(f"{urlsplit(url).netloc} answered with status {response.status_code}.")
            answer = response.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise SignInUnavailable(
                f"{urlsplit(url).netloc} gave no usable answer ({type(error).__name__})."
            ) from error
        if not isinstance(answer, dict) or (response.status_code >= 400 and "error" not in answer):
            raise SignInUnavailable(f"{urlsplit(url).netloc} answered with status {response.status_code}.")
        return cast("dict[str, Any]", answer)


def _require_endpoint(metadata: Mapping[str, Any], name: str) -> str:
    if not isinstance(endpoint := metadata.get(name), str):
        raise SignInRefused(f"The identity provider has no {name}; turn this flow on there.")
    return endpoint


def _add_query(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(parameters)}"


def _describe_refusal(answer: Mapping[str, Any]) -> str:
    return str(answer.get("error_description") or answer.get("error") or "without a reason")[:200]


def _parse_keys(document: Mapping[str, Any]) -> KeySet:
    """The public keys for signatures. Keys of kinds that joserfc does not know are left out."""
    keys: list[Key] = []
    for each in cast("Sequence[dict[str, Any]]", document.get("keys") or ()):
        if each.get("kty") == "oct" or each.get("use", "sig") != "sig":
            continue
        try:
            keys += KeySet.import_key_set({"keys": [each]}).keys
        except (JoseError, ValueError, KeyError):
            continue
    return KeySet(keys)


def _decode(token: str, keys: KeySet) -> jwt.Token:
    def find_key(presented: GuestProtocol) -> Key:
        headers = presented.headers()
        named = [each for each in keys.keys if headers.get("kid") in (each.kid, None)]
        # Without a name, the set must have only one key.
        usable = [each for each in named if each.get("alg") in (None, headers.get("alg"))]
        if len(usable) != 1:
            raise _UnknownKey
        return usable[0]

    try:
        decoded = jwt.decode(token, find_key, algorithms=SIGNATURE_ALGORITHMS)
    except UnsupportedAlgorithmError:
        raise SignInRefused(f"The token's algorithm is none of {', '.join(SIGNATURE_ALGORITHMS)}.") from None
    except BadSignatureError:
        raise SignInRefused("The token's signature is wrong.") from None
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise SignInRefused(f"The token cannot be read ({type(error).__name__}).") from None
    kind = decoded.header.get("typ")
    if (kind.lower() if isinstance(kind, str) else kind) not in _TOKEN_TYPES:
        raise SignInRefused("The token is of another type than an ID token (header `typ`).")
    return decoded


def _check_claims(token: jwt.Token, *, issuer: str, audience: str, nonce: str | None) -> None:
    claims = token.claims
    expected = {name: {"essential": True} for name in ("iss", "sub", "aud", "exp", "iat")}
    try:
        jwt.JWTClaimsRegistry(leeway=CLOCK_SKEW_SECONDS, **cast(Any, expected)).validate(claims)
    except MissingClaimError as error:
        raise SignInRefused(f"The token lacks the claim {error.claim!r}.") from None
    except ExpiredTokenError:
        raise SignInRefused("The token has expired.") from None
    except InvalidClaimError as error:
        raise SignInRefused(f"The token's claim {error.claim!r} is wrong: {error.description}.") from None
    if not isinstance(claims["iss"], str) or claims["iss"].rstrip("/") != issuer:
        raise SignInRefused("The token's issuer is another one.")
    audiences = [claims["aud"]] if isinstance(claims["aud"], str) else claims["aud"]
    if not isinstance(audiences, list) or audience not in audiences:
        raise SignInRefused("The token is for another audience.")
    authorized = claims.get("azp")
    if nonce is not None and authorized != audience and (authorized is not None or len(cast(Any, audiences)) > 1):
        raise SignInRefused("The token was issued to another client (claim `azp`).")
    if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= MAX_SUBJECT_CHARS:
        raise SignInRefused("The token's claim 'sub' has a wrong value.")
    if nonce is not None and claims.get("nonce") != nonce:
        raise SignInRefused("The token's nonce is not the one of this sign-in.")


def _read_unverified_issuer(token: str) -> str | None:
    """The issuer that a token claims, to choose the keys by which it is then verified."""
    try:
        issuer = json.loads(extract_compact(token.encode()).payload)["iss"]
    except (JoseError, ValueError, KeyError, TypeError):
        return None
    return issuer if isinstance(issuer, str) else None
