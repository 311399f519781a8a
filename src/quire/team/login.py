"""`quire login`: sign in to a server with the identity provider, for an API key."""

import time
import webbrowser
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import AsJson
from quire.cli.output import Result, Verbatim, print_note, print_result
from quire.errors import AccessDenied, MissingExtra, NotFound

if TYPE_CHECKING:
    import httpx2

TIMEOUT_SECONDS = 30.0
DEFAULT_INTERVAL_SECONDS = 5.0
DEFAULT_EXPIRY_SECONDS = 600.0
"""Both as in RFC 8628, where the provider names none."""


def command(
    server: Annotated[str, typer.Argument(metavar="URL", help="Address of the server, such as https://….")],
    *,
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The tenant, if your groups give you several.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign in to a server in the browser, and print an API key of your own that is valid for 30 days.

    Use it wherever a client asks for an API key, such as `ANTHROPIC_API_KEY=$(quire login URL)`. It works while your
    organisation lets you sign in, and reads and writes your own conversations only.
    """
    from quire.team.schemas import LoginSchema

    try:
        import httpx2
    except ModuleNotFoundError:
        raise MissingExtra(extra="server", feature="Signing in") from None
    with httpx2.Client(base_url=server, timeout=TIMEOUT_SECONDS) as client:
        try:
            codes = _post(client, "/auth/device", None)
            address = codes.get("verification_uri_complete") or codes["verification_uri"]
            print_note(f"Open {address} and confirm the code {codes['user_code']}.")
            webbrowser.open(address)
            interval = float(codes.get("interval") or DEFAULT_INTERVAL_SECONDS)
            deadline = time.monotonic() + float(codes.get("expires_in") or DEFAULT_EXPIRY_SECONDS)
            while time.monotonic() < deadline:
                time.sleep(interval)
                answer = _post(client, "/auth/device/key", {"device_code": codes["device_code"], "tenant": tenant})
                if "key" in answer:
                    break
                interval += 5 if answer.get("slow_down") else 0
            else:
                raise AccessDenied("The code has expired; start again with `quire login`.")
        except httpx2.HTTPError as error:
            raise NotFound(f"{server} gave no usable answer ({type(error).__name__}); check the address.") from error
    document = LoginSchema.model_validate(answer)
    print_note(f"Signed in as {document.email or document.name}, tenant {document.tenant}. The key is valid 30 days.")
    print_result(Result(document, lambda _: [Verbatim(document.key)]), as_json=as_json)


def _post(client: "httpx2.Client", path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    response = client.post(path, json=body)
    answer: dict[str, Any] = response.json() if "json" in response.headers.get("content-type", "") else {}
    if response.status_code >= 400 or not answer:
        raise AccessDenied(str(answer.get("detail") or f"The server answered with status {response.status_code}."))
    return answer
