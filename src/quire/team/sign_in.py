"""Sign-in of people by the identity provider: sessions in cookies, roles from groups, keys for the command line.

A session is a row of the database, looked up at every request, so it ends on all servers at once. The cookie has a
secret of which the row has only the digest, and with which the provider's tokens in the row are encrypted: a copy of
the database opens no session, here or at the provider.

The cookies are `__Host-` cookies: sent over TLS only, to this host only. A browser accepts these only from https, so on
http, which the settings allow on loopback alone, they have a plain name with the port, because browsers share cookies
between all ports of a host.
"""

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import CrossOriginRequest, InvalidConfiguration, SignInRefused, SignInRequired, SignInUnavailable
from quire.model.ids import new_secret, now
from quire.model.people import UserRole, make_space
from quire.server.caller import Caller
from quire.server.telemetry.logs import log_server_event
from quire.settings.schema import SignIn
from quire.store import SqlStore
from quire.team.directory import roles_by_group_for
from quire.team.identity_provider import IdentityProvider, ProviderTokens
from quire.team.permissions import make_person_caller
from quire.team.store import TeamStore
from quire.team.users import MAX_SUBJECT_CHARS, Session, User

SESSION_SECONDS = 12 * 3_600
"""Seconds after which a person signs in again, usually without a question by the provider."""
REFRESH_SECONDS = 900
"""Seconds after which the provider must confirm the person and the groups again."""
CookieName = Literal["pending", "session"]
COOKIE_SECONDS: dict[CookieName, int] = {"pending": 600, "session": SESSION_SECONDS}
"""Seconds that a person has to sign in at the provider, and that a session lasts."""
LOGIN_KEY_SECONDS = 30 * 86_400
"""Validity of the API key that `quire login` gets."""
ACCOUNT_PATH = "/auth/account"
MAX_RETURN_CHARS = 1_000
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OWN_FETCH_SITES = ("same-origin", "none")


class SignedIn(NamedTuple):
    tenant: str
    user: User


class SignInService:
    """Sign-in, sessions and the callers that they give."""

    def __init__(self, sign_in: SignIn, store: SqlStore, environ: Mapping[str, str]) -> None:
        secret = None
        if sign_in.client_secret_env is not None and not (secret := environ.get(sign_in.client_secret_env)):
            raise InvalidConfiguration(
                f"The environment variable {sign_in.client_secret_env} of `sign_in.client_secret_env` is not set."
            )
        self._sign_in, self._store = sign_in, store
        self._tenants = frozenset(each.tenant for each in sign_in.groups.values())
        self.provider = IdentityProvider(sign_in, secret)
        parts = urlsplit(sign_in.url)
        self.url, self._origin = sign_in.url, f"{parts.scheme}://{parts.netloc}".lower()
        self._is_secure = parts.scheme == "https"
        self._cookie_format = "__Host-quire-{}" if self._is_secure else f"quire-{{}}-{parts.port or 80}"

    # The way to the provider and back.

    async def begin(self, return_to: str, tenant: str | None) -> tuple[str, str]:
        """The provider's address for a sign-in, and the cookie that binds the answer to this browser."""
        secret = new_secret()
        challenge = urlsafe_b64encode(sha256(_derive(secret, "verifier").encode()).digest()).decode().rstrip("=")
        url = await self.provider.make_authorization_url(
            state=_derive(secret, "state"), nonce=_derive(secret, "nonce"), code_challenge=challenge
        )
        pending = json.dumps([secret, check_return_path(return_to), tenant])
        return url, urlsafe_b64encode(pending.encode()).decode()

    async def complete(self, query: Mapping[str, str], pending_cookie: str | None) -> tuple[SignedIn, str, str]:
        """Finishes a sign-in: the person, the cookie of the new session, and the path to return to."""
        try:
            secret, return_to, tenant = json.loads(urlsafe_b64decode(pending_cookie or ""))
        except ValueError:
            raise SignInRefused(
                "This sign-in was not started in this browser, or took too long; start again."
            ) from None
        if query.get("state") != _derive(secret, "state"):
            raise SignInRefused("This answer belongs to another sign-in; start again.")
        if query.get("iss", self._sign_in.issuer).rstrip("/") != self._sign_in.issuer:
            raise SignInRefused("This answer comes from another provider.")
        if (error := query.get("error")) is not None:
            raise SignInRefused(f"The provider refuses the sign-in: {query.get('error_description', error)[:200]}.")
        tokens = await self.provider.exchange_code(query.get("code", ""), _derive(secret, "verifier"))
        claims = await self.provider.load_claims(tokens, nonce=_derive(secret, "nonce"))
        signed_in = await self._confirm(claims, tenant)
        return signed_in, await self._create_session(signed_in, tokens), check_return_path(return_to)

    async def complete_device(self, device_code: str, tenant: str | None) -> tuple[SignedIn, str]:
        """Finishes the device flow: the person, and an API key of the person for the command line."""
        tokens = await self.provider.poll_device_flow(device_code)
        signed_in = await self._confirm(await self.provider.load_claims(tokens, nonce=None), tenant)
        space = self._store.for_tenant(make_space(signed_in.tenant, signed_in.user.id))
        expires_at = now() + LOGIN_KEY_SECONDS * 1_000_000
        _, text = await space.keys.create("quire login", ["read", "write", "chat", "approve"], expires_at=expires_at)
        return signed_in, text

    async def _confirm(self, claims: Mapping[str, Any], tenant: str | None) -> SignedIn:
        subject = self._read_subject(claims)
        if self._sign_in.provisioning == "scim":
            return await self._confirm_provisioned(subject, tenant)
        roles_by_tenant = self._map_groups(claims)
        chosen = tenant if tenant is not None else next(iter(roles_by_tenant), None)
        if chosen not in roles_by_tenant:
            raise SignInRefused(
                "None of your groups has access to this server; ask its operator to name one in `sign_in.groups`."
                if tenant is None
                else f"None of your groups has access to the tenant {tenant!r}."
            )
        user = await TeamStore(self._store.for_tenant(chosen)).users.confirm(
            subject,
            name=str(claims.get("name") or claims.get("preferred_username") or ""),
            # An address that the provider did not verify could be another person's.
            email=str(claims.get("email") or "") if claims.get("email_verified", True) is True else "",
            roles=roles_by_tenant[chosen],
        )
        return SignedIn(chosen, user)

    def _read_subject(self, claims: Mapping[str, Any]) -> str:
        """The provider's permanent id of the person."""
        subject = claims.get(self._sign_in.subject_claim)
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS:
            raise SignInRefused(
                f"The provider sent no claim {self._sign_in.subject_claim!r}, by which people are known."
            )
        return subject

    async def _confirm_provisioned(self, subject: str, tenant: str | None) -> SignedIn:
        """The person whom a directory has created, in the first tenant of the settings in which there are roles."""
        is_known = False
        for name in dict.fromkeys(each.tenant for each in self._sign_in.groups.values()):
            if tenant not in (None, name):
                continue
            directory, roles = (
                TeamStore(self._store.for_tenant(name)).directory,
                roles_by_group_for(self._sign_in, name),
            )
            found = await directory.find_roles(subject, roles)
            is_known |= found is not None
            if found:
                return SignedIn(name, await directory.confirm(subject, roles))
        if is_known:
            raise SignInRefused("None of your groups has access; ask who runs the directory to add you to one.")
        raise SignInRefused(
            "The directory has not created an account for you here, or has deactivated it. Your id (claim "
            f"{self._sign_in.subject_claim!r}) is {subject!r}; it must be the externalId that the directory sends."
        )

    def _map_groups(self, claims: Mapping[str, Any]) -> dict[str, frozenset[UserRole]]:
        """Roles by tenant, in the order of the settings."""
        named = claims.get(self._sign_in.groups_claim) or ()
        groups = [named] if isinstance(named, str) else [str(each) for each in cast("Iterable[object]", named)]
        roles: dict[str, frozenset[UserRole]] = {}
        for group, given in self._sign_in.groups.items():
            if group == "*" or group in groups:
                roles[given.tenant] = roles.get(given.tenant, frozenset[UserRole]()) | frozenset[UserRole]({given.role})
        return roles

    # Sessions.

    async def _create_session(self, signed_in: SignedIn, tokens: ProviderTokens) -> str:
        secret, at = new_secret(), now()
        await TeamStore(self._store.for_tenant(signed_in.tenant)).sessions.create(
            _hash_secret(secret),
            signed_in.user.id,
            expires_at=at + SESSION_SECONDS * 1_000_000,
            refresh_at=at + REFRESH_SECONDS * 1_000_000,
            tokens=_encrypt_tokens(tokens, secret),
        )
        return f"{urlsafe_b64encode(signed_in.tenant.encode()).decode().rstrip('=')}.{secret}"

    async def authenticate(self, request: Request) -> Caller:
        """The person whose session the request's cookie has. Raises `SignInRequired` or `CrossOriginRequest`."""
        session = await self.find_session(request)
        if session is None:
            raise SignInRequired(f"Sign in at {self.url}/auth/login, or send an API key.")
        self._check_origin(request)
        tenant, secret, found = session
        if now() >= found.refresh_at:
            found = await self._refresh(tenant, secret, found)
        return make_person_caller(tenant, found.user)

    async def find_session(self, request: Request) -> tuple[str, str, Session] | None:
        """Tenant, secret and row of the session that the request's cookie names."""
        cookie = self.read_cookie(request.headers, "session")
        encoded, _, secret = (cookie or "").partition(".")
        try:
            tenant = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
        except ValueError:
            return None
        # Only a tenant of the settings has sessions. The store caches each tenant of a query.
        if tenant not in self._tenants or not secret:
            return None
        found = await TeamStore(self._store.for_tenant(tenant)).sessions.find(_hash_secret(secret))
        return (tenant, secret, found) if found is not None else None

    async def _refresh(self, tenant: str, secret: str, session: Session) -> Session:
        """Asks the provider about the person again. While the provider is down, the session continues."""
        store = TeamStore(self._store.for_tenant(tenant))
        refresh_token = _decrypt_tokens(session.tokens, secret).refresh_token
        if refresh_token is None:
            # Only another sign-in asks this provider.
            await store.sessions.end(session.digest)
            raise SignInRequired("Your session must be confirmed by the provider; sign in again.")
        if not await store.sessions.claim_refresh(session, now() + REFRESH_SECONDS * 1_000_000):
            return session
        try:
            tokens = await self.provider.refresh(refresh_token)
            claims = (
                await self.provider.load_claims(tokens, nonce=None)
                if tokens.id_token is not None
                else await self.provider.load_userinfo(tokens.access_token)
            )
        except SignInUnavailable as error:
            log_server_event("identity provider unavailable", level=logging.WARNING, error_kind=type(error).__name__)
            return session
        except SignInRefused as error:
            await store.sessions.end(session.digest)
            raise SignInRequired(f"The provider has ended your session: {error} Sign in again.") from error
        old = _decrypt_tokens(session.tokens, secret)
        tokens = ProviderTokens(
            tokens.id_token or old.id_token, tokens.refresh_token or refresh_token, tokens.access_token
        )
        await store.sessions.store_tokens(session.digest, _encrypt_tokens(tokens, secret))
        if claims.get(self._sign_in.subject_claim) != session.user.subject:
            await store.sessions.end(session.digest)
            raise SignInRequired("The provider's answer is about another person; sign in again.")
        user = await self._confirm_again(store, tenant, session.user, claims)
        if not user.roles:
            await store.sessions.end(session.digest)
            raise SignInRequired("None of your groups has access to this tenant any more.")
        return session._replace(user=user)

    async def _confirm_again(self, store: TeamStore, tenant: str, user: User, claims: Mapping[str, Any]) -> User:
        """The person with the roles of this moment."""
        if self._sign_in.provisioning == "scim":
            try:
                return await store.directory.confirm(user.subject, roles_by_group_for(self._sign_in, tenant))
            except SignInRefused:
                return user._replace(roles=frozenset[UserRole]())
        roles = self._map_groups(claims).get(tenant, frozenset[UserRole]())
        return await store.users.confirm(user.subject, name=user.name, email=user.email, roles=roles)

    async def end(self, request: Request) -> tuple[SignedIn, str | None] | None:
        """Ends the session of the request. The person, and the provider's address that ends its own session."""
        session = await self.find_session(request)
        if session is None:
            return None
        self._check_origin(request)
        tenant, secret, found = session
        await TeamStore(self._store.for_tenant(tenant)).sessions.end(found.digest)
        try:
            url = await self.provider.make_logout_url(_decrypt_tokens(found.tokens, secret).id_token)
        except SignInUnavailable:
            url = None
        return SignedIn(tenant, found.user), url

    async def authenticate_workload(self, token: str) -> Caller:
        """The program that presents a token of its platform in place of an API key."""
        subject, tenant = await self.provider.verify_workload(token)
        return Caller(tenant, subject, frozenset({"read", "write", "chat"}), roles=frozenset({"member"}))

    # Cookies.

    def read_cookie(self, headers: Headers, name: CookieName) -> str | None:
        """Value of a cookie. None also if it is there twice, since one of them is then not ours."""
        full_name = self._cookie_format.format(name)
        pairs = (each.strip().partition("=") for line in headers.getlist("cookie") for each in line.split(";"))
        values = [value for each, _, value in pairs if each == full_name]
        return values[0] if len(values) == 1 else None

    def set_cookie(self, response: Response, name: CookieName, value: str | None) -> None:
        """Sets a cookie, or deletes it with None.

        Not `SameSite=Strict`: the browser comes back from the provider's site, and would then not send it.
        """
        response.set_cookie(
            self._cookie_format.format(name),
            value or "",
            max_age=COOKIE_SECONDS[name] if value is not None else 0,
            httponly=True,
            secure=self._is_secure,
            samesite="lax",
            path="/",
        )
        response.headers["Cache-Control"] = "no-store"

    def make_login_path(self, return_to: str) -> str:
        return f"/auth/login?{urlencode({'return_to': check_return_path(return_to)})}"

    def _check_origin(self, request: Request) -> None:
        """Raises `CrossOriginRequest` if a page of another site sent the request with this person's cookie."""
        headers = request.headers
        origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
        if request.method == "GET" and headers.getlist("sec-fetch-mode") == ["navigate"]:
            # A person follows a link, such as one to a shared conversation; no page can read the answer.
            return
        is_foreign = any(each.lower() != self._origin for each in origins) or any(
            each not in _OWN_FETCH_SITES for each in sites
        )
        # A browser names the origin of every request that can change something.
        if is_foreign or (request.method not in _SAFE_METHODS and not origins and not sites):
            raise CrossOriginRequest(f"Requests with a session must come from {self.url}; others need an API key.")


def check_return_path(path: object) -> str:
    """The path, if it leads to this server; else `/`. Browsers read `//host` and `/\\host` as other hosts."""
    if not isinstance(path, str) or len(path) > MAX_RETURN_CHARS or not path.isascii() or not path.isprintable():
        return "/"
    is_own = path.startswith("/") and path[1:2] not in ("/", "\\")
    # The other pages under /auth would start a sign-in again.
    return path if is_own and (path == ACCOUNT_PATH or not path.startswith("/auth/")) else "/"


def _derive(secret: str, purpose: str) -> str:
    """One of the values of a sign-in, which all follow from the secret in the cookie."""
    return sha256(f"{purpose} {secret}".encode()).hexdigest()


def _hash_secret(secret: str) -> bytes:
    return sha256(secret.encode(errors="replace")).digest()


def _encryption_key(secret: str) -> OctKey:
    # The digest for another purpose than that in the row.
    return OctKey.import_key(sha256(f"tokens {secret}".encode()).digest())


def _encrypt_tokens(tokens: ProviderTokens, secret: str) -> str:
    # Only what a refresh and a logout need.
    stored = json.dumps([tokens.id_token, tokens.refresh_token])
    return jwe.encrypt_compact({"alg": "dir", "enc": "A256GCM"}, stored, _encryption_key(secret))


def _decrypt_tokens(text: str, secret: str) -> ProviderTokens:
    try:
        decrypted = jwe.decrypt_compact(text, _encryption_key(secret)).plaintext
        id_token, refresh_token = json.loads(decrypted or b"")
    except (JoseError, ValueError):
        return ProviderTokens(None, None, None)
    return ProviderTokens(id_token, refresh_token, None)
