"""The page for browsers: its built files, served from the package, under a policy that lets in nothing else.

The files are public and hold no data; everything that they show comes through `/api`, with its guards.
"""

from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

BUILT: Final = Path(__file__).parent / "static"
"""Where the build puts the files; see `hatch_build.py`."""

POLICY: Final = "; ".join(
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

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

FOR_EVER: Final = "public, max-age=31536000, immutable"
"""For files whose names have a digest of their content in them."""

_NOT_BUILT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Quire</title></head>
<body><main><h1>The page is not built</h1>
<p>Quire runs here from a source tree or from a wheel without the page. In the source tree,
<code>just web</code> builds it; that needs Node.js. The interface under <code>/api</code> works without.</p>
</main></body></html>
"""


class _Assets(StaticFiles):
    """Files that never change under their names."""

    async def check_config(self) -> None:
        """A page that was not built has no files, and that is no fault of the server's."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        response.headers["Cache-Control"] = FOR_EVER
        return response


def add_page(app: FastAPI, *, built: Path = BUILT) -> None:
    """Serves the page at `/`, or a note that says how to build it."""

    async def index(_: Request) -> Response:
        file = built / "index.html"
        if not file.is_file():
            return HTMLResponse(_NOT_BUILT, status_code=404, headers=HEADERS)
        return FileResponse(file, headers={**HEADERS, "Cache-Control": "no-cache"})

    async def icon(_: Request) -> Response:
        file = built / "favicon.svg"
        if not file.is_file():
            raise HTTPException(404, "There is no icon.")
        return FileResponse(file, headers={**HEADERS, "Cache-Control": "public, max-age=86400"})

    app.add_route("/", index, include_in_schema=False)
    app.add_route("/favicon.svg", icon, include_in_schema=False)
    app.mount("/assets", _Assets(directory=built / "assets", check_dir=False), name="assets")
