"""Static files of the web page, served from the package under a strict Content Security Policy.

The files are public and contain no data: the page loads all data through `/api`, which authenticates.
"""

from html import escape
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC_DIR: Final = Path(__file__).parent / "static"
"""Output of the page build; see `hatch_build.py`."""

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types svelte-trusted-html dompurify",
    )
)

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

IMMUTABLE_CACHE_CONTROL: Final = "public, max-age=31536000, immutable"
"""For files whose names contain a digest of their content."""

_NOT_BUILT_HTML: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Quire</title></head>
<body><main><h1>The page is not built</h1>
<p>Quire runs here from a source tree or from a wheel without the page. In the source tree,
<code>just web</code> builds it; that needs Node.js. The API under <code>/api</code> works without it.</p>
</main></body></html>
"""


_DENIED_HTML: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Quire</title></head>
<body><main><h1>This address is not valid any more</h1>
<p>{reason}</p>
<p>The server prints a new address at each start. <code>quire serve --open</code> opens it in the browser.</p>
</main></body></html>
"""


def make_denied_page(reason: str) -> HTMLResponse:
    """The page for an address whose token is missing, wrong or expired."""
    headers = {**SECURITY_HEADERS, "Cache-Control": "no-store"}
    return HTMLResponse(_DENIED_HTML.format(reason=escape(reason)), status_code=401, headers=headers)


class _ImmutableFiles(StaticFiles):
    """Files whose content never changes under the same name."""

    async def check_config(self) -> None:
        """Skips the check for the folder: the server also runs without a built page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(SECURITY_HEADERS)
        response.headers["Cache-Control"] = IMMUTABLE_CACHE_CONTROL
        return response


def add_page(app: FastAPI, *, static_dir: Path = STATIC_DIR) -> None:
    """Serves the page at `/`, or a 404 with build instructions if it is not built."""

    async def index(_: Request) -> Response:
        file = static_dir / "index.html"
        if not file.is_file():
            return HTMLResponse(_NOT_BUILT_HTML, status_code=404, headers=SECURITY_HEADERS)
        return FileResponse(file, headers={**SECURITY_HEADERS, "Cache-Control": "no-cache"})

    async def icon(_: Request) -> Response:
        file = static_dir / "favicon.svg"
        if not file.is_file():
            raise HTTPException(404, "The page has no icon, because it is not built; run `just web`.")
        return FileResponse(file, headers={**SECURITY_HEADERS, "Cache-Control": "public, max-age=86400"})

    app.add_route("/", index, include_in_schema=False)
    app.add_route("/favicon.svg", icon, include_in_schema=False)
    app.mount("/assets", _ImmutableFiles(directory=static_dir / "assets", check_dir=False), name="assets")
