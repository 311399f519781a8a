"""Sign-in and sign-out of people, for browsers and for `quire login`, and the page of a shared conversation.

These routes answer with pages and redirects. They exist only where the setting `sign_in` is set.
"""

from html import escape
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from quire.engine.shared_transcript import SharedTranscript
from quire.errors import SignInRefused, SignInRequired, SignInUnavailable, TooManyRequests
from quire.log import MAIN_BRANCH
from quire.model.people import USER_ROLES
from quire.server.auth import authorize
from quire.server.dependencies import ConversationId, StateDep
from quire.server.event_stream import ClosingStreamingResponse
from quire.server.page import PLAIN_PAGE_HEADERS, make_notice, make_plain_page, stream_text_page
from quire.server.rate_limits import RateLimiter
from quire.server.telemetry.logs import log_server_event
from quire.team.access import audit_request, require_sign_in
from quire.team.permissions import make_person_caller
from quire.team.schemas import LoginSchema
from quire.team.store import TeamStore

if TYPE_CHECKING:
    from quire.team.sign_in import SignInService

router = APIRouter(include_in_schema=False)

PROVIDER_CALLS_PER_MINUTE = 300
"""Calls to the identity provider that an address may cause on a route, without being signed in. `quire login` asks
every five seconds, and a team may share an address."""


SignInDep = Annotated[Any, Depends(require_sign_in)]


async def _limit_provider_calls(request: Request) -> None:
    """Raises `TooManyRequests` if this address has made the provider busy."""
    if not hasattr(request.app.state, "provider_limiter"):
        request.app.state.provider_limiter = RateLimiter()
    limiter: RateLimiter = request.app.state.provider_limiter
    address = request.client.host if request.client is not None else ""
    status = limiter.acquire(f"{request.url.path} {address}", PROVIDER_CALLS_PER_MINUTE)
    if status.retry_after is not None:
        raise TooManyRequests(
            f"Your address has made {status.limit:,} sign-in requests a minute; retry in {status.retry_after} seconds.",
            retry_after=status.retry_after,
        )


ProviderCall = Depends(_limit_provider_calls)


def _explain(error: SignInRefused | SignInUnavailable) -> Response:
    log_server_event("sign-in refused", reason=str(error))
    is_outage = isinstance(error, SignInUnavailable)
    title = "Sign-in is not possible at the moment" if is_outage else "You could not be signed in"
    return make_notice(title, str(error), "Open `/auth/login` to try again.", status=503 if is_outage else 403)


@router.get("/auth/login")
async def begin_sign_in(sign_in: SignInDep, return_to: str = "/", tenant: str | None = None) -> Response:
    """Sends the browser to the identity provider."""
    service: SignInService = sign_in
    try:
        url, pending = await service.begin(return_to, tenant)
    except (SignInRefused, SignInUnavailable) as error:
        return _explain(error)
    response = RedirectResponse(url, status_code=303)
    service.set_cookie(response, "pending", pending)
    return response


@router.get("/auth/callback", dependencies=[ProviderCall])
async def complete_sign_in(request: Request, sign_in: SignInDep) -> Response:
    """The identity provider's answer: creates the session."""
    service: SignInService = sign_in
    try:
        signed_in, cookie, return_to = await service.complete(
            request.query_params, service.read_cookie(request.headers, "pending")
        )
    except (SignInRefused, SignInUnavailable) as error:
        return _explain(error)
    await audit_request(request, make_person_caller(signed_in.tenant, signed_in.user), "sign_in")
    response = RedirectResponse(return_to, status_code=303)
    service.set_cookie(response, "pending", None)
    service.set_cookie(response, "session", cookie)
    return response


@router.get("/auth/account")
async def show_account(request: Request, server_state: StateDep, sign_in: SignInDep) -> Response:
    """Who is signed in, what others share with this person, and the button to sign out."""
    service: SignInService = sign_in
    session = await service.find_session(request)
    if session is None:
        return RedirectResponse(service.make_login_path("/auth/account"), status_code=303)
    tenant, _, found = session
    user, team = found.user, TeamStore(server_state.store.for_tenant(tenant))
    names = {each.id: each.name or each.email or each.id for each in await team.users.list()}
    roles = ", ".join(role for role in USER_ROLES if role in user.roles)
    links = [
        f'<li><a href="{escape(make_share_path(each.owner, each.conversation))}">{escape(each.conversation)}</a> '
        f"by {escape(names.get(each.owner, each.owner))}</li>"
        for each in await team.shares.list_shared_with(user.id)
    ]
    shared = f"<p>Shared with you:</p><ul>{''.join(links)}</ul>" if links else ""
    about = f"<p>{escape(user.email)}, {escape(roles)} of {escape(tenant)}. Your id: <code>{user.id}</code></p>"
    form = '<form method="post" action="/auth/logout"><button>Sign out</button></form>'
    # The form ends at the provider, which the policy has to allow.
    logout = urlsplit(await _find_logout_url(service) or service.url)
    forms = f"'self' {logout.scheme}://{logout.netloc}"
    return make_plain_page(user.name or user.email or user.id, f"{about}{form}{shared}", forms=forms)


async def _find_logout_url(service: "SignInService") -> str | None:
    try:
        return await service.provider.make_logout_url(None)
    except SignInUnavailable:
        return None


@router.post("/auth/logout")
async def sign_out(request: Request, sign_in: SignInDep) -> Response:
    """Ends the session here, on all servers at once, and leads to the provider to end it there."""
    service: SignInService = sign_in
    ended = await service.end(request)
    url = None
    if ended is not None:
        signed_in, url = ended
        await audit_request(request, make_person_caller(signed_in.tenant, signed_in.user), "sign_out")
    response = RedirectResponse(url or "/auth/out", status_code=303)
    service.set_cookie(response, "session", None)
    return response


@router.get("/auth/out")
async def confirm_sign_out(_: SignInDep) -> Response:
    return make_notice("You are signed out", "Open `/auth/login` to sign in again.", status=200)


class DeviceBody(BaseModel):
    device_code: str = Field(min_length=1, max_length=2_000)
    tenant: str | None = Field(default=None, max_length=200)


@router.post("/auth/device", dependencies=[ProviderCall])
async def start_device_sign_in(sign_in: SignInDep) -> dict[str, Any]:
    """Starts the device flow for `quire login`; the secret of this server's client stays here."""
    service: SignInService = sign_in
    answer = await service.provider.start_device_flow()
    names = ("device_code", "user_code", "verification_uri", "verification_uri_complete", "expires_in", "interval")
    return {name: answer[name] for name in names if name in answer}


@router.post("/auth/device/key", dependencies=[ProviderCall])
async def complete_device_sign_in(request: Request, body: DeviceBody, sign_in: SignInDep) -> dict[str, Any]:
    """An API key of the person, once the person has signed in; until then `pending`."""
    from quire.team.identity_provider import DevicePending

    service: SignInService = sign_in
    try:
        signed_in, key = await service.complete_device(body.device_code, body.tenant)
    except DevicePending as pending:
        return {"pending": True, "slow_down": pending.slow_down}
    await audit_request(request, make_person_caller(signed_in.tenant, signed_in.user), "sign_in", by="device")
    user = signed_in.user
    return LoginSchema(key=key, tenant=signed_in.tenant, name=user.name, email=user.email).model_dump()


def make_share_path(owner: str, conversation: str) -> str:
    """Address of the page of a shared conversation. It needs a sign-in."""
    return f"/shared/{quote(conversation, safe='')}?user={quote(owner, safe='')}"


@router.get("/shared/{conversation}")
async def read_shared(
    request: Request, server_state: StateDep, sign_in: SignInDep, conversation: ConversationId
) -> Response:
    """A conversation as text to read, for those with whom it is shared. Secrets of known formats are masked."""
    service: SignInService = sign_in
    try:
        caller = await authorize(request, "read_transcript")
    except SignInRequired:
        path = f"{request.url.path}?{request.url.query}"
        return RedirectResponse(service.make_login_path(path), status_code=303)
    store = server_state.store.for_tenant(caller.tenant)
    [record] = await store.fill_titles(await store.get_conversation(conversation))
    branch = await store.get_branch(conversation, MAIN_BRANCH)
    transcript = SharedTranscript(store, record, branch, format="markdown")
    return ClosingStreamingResponse(
        stream_text_page(transcript.title, transcript.write()),
        media_type="text/html",
        headers=PLAIN_PAGE_HEADERS,
    )
