"""Static files of the web interface, served from the package under a strict Content Security Policy.

The files are public and contain no data: the web interface loads all data through `/api`, which authenticates.
"""

import re
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC_DIR: Final = Path(__file__).parent / "static"
"""Output of the build; see `hatch_build.py`."""

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        # Previews, which have an origin and a policy of their own.
        "frame-src 'self'",
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

_NOTICE_STYLE: Final = """
:root { color-scheme: light dark; --paper: #faf8f2; --ink: #24221d; --soft: #625d52; }
@media (prefers-color-scheme: dark) { :root { --paper: #191916; --ink: #e8e4da; --soft: #a8a294; } }
body { margin: 0; padding: 15vh 1.5rem 2rem; background: var(--paper); color: var(--soft);
  font: 1rem/1.6 system-ui, sans-serif; }
main { max-width: 34rem; margin: 0 auto; }
h1 { margin: 0; color: var(--ink); font: 600 1.8rem/1.25 Georgia, serif; }
code { color: var(--ink); white-space: nowrap; }
pre { color: var(--ink); white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; }
a, button { color: inherit; font: inherit; }
"""
"""Style of a page without the built files; its policy allows nothing else."""

_NOTICE_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{b64encode(sha256(_NOTICE_STYLE.encode()).digest()).decode()}'",
        "base-uri 'none'",
        "form-action {forms}",
        "frame-ancestors 'none'",
    )
)

_PREVIEW_SCRIPT: Final = """
addEventListener("message", ({ data, source }) => {
  if (source !== parent) return;
  const page = new DOMParser().parseFromString(data, "text/html");
  for (const each of page.querySelectorAll("script, link, meta, base, iframe, object, embed")) each.remove();
  for (const each of page.querySelectorAll("[href]:not([href^='#'])")) each.removeAttribute("href");
  for (const each of page.querySelectorAll("[src]:not([src^='data:'])")) each.removeAttribute("src");
  document.replaceChild(document.adoptNode(page.documentElement), document.documentElement);
}, { once: true });
"""
"""Renders what the page sends, without what runs or leads elsewhere. The policy refuses that too, but reports it."""

_PREVIEW_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'sha256-{b64encode(sha256(_PREVIEW_SCRIPT.encode()).digest()).decode()}'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
        # An origin of its own, also if the address is opened in a window.
        "sandbox allow-scripts",
    )
)

_NOTICE_HTML: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Quire</title><style>{style}</style></head>
<body><main><h1>{title}</h1>{paragraphs}</main></body></html>
"""


def make_denied_page(reason: str) -> HTMLResponse:
    """The page for an address whose token is missing, wrong or expired."""
    advice = "The server prints a new address at each start. `quire serve --open` opens it in the browser."
    response = make_notice("This address is not valid any more", reason, advice, status=401)
    response.headers["Cache-Control"] = "no-store"
    return response


def make_notice(title: str, *paragraphs: str, status: int) -> HTMLResponse:
    """A page of text; what is in backticks is code."""
    escaped = [re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(each)) for each in paragraphs]
    return make_plain_page(title, "".join(f"<p>{each}</p>" for each in escaped), status=status)


def make_plain_page(title: str, html: str, *, status: int = 200, forms: str = "'none'") -> HTMLResponse:
    """A page without scripts around trusted HTML. Its forms may lead to `forms`, in words of the policy."""
    page = _NOTICE_HTML.format(style=_NOTICE_STYLE, title=escape(title), paragraphs=html)
    headers = {**SECURITY_HEADERS, "Content-Security-Policy": _NOTICE_POLICY.format(forms=forms)}
    if forms != "'none'":
        # Without a referrer, browsers send a form with the origin `null`, as if from another site.
        headers["Referrer-Policy"] = "same-origin"
    return HTMLResponse(page, status_code=status, headers={**headers, "Cache-Control": "no-store"})


async def stream_text_page(title: str, texts: AsyncIterator[str]) -> AsyncGenerator[bytes]:
    """Pieces of a page that shows plain text, for a response with the headers of `PLAIN_PAGE_HEADERS`."""
    start, _, end = _NOTICE_HTML.format(style=_NOTICE_STYLE, title=escape(title), paragraphs="<pre>\0</pre>").partition(
        "\0"
    )
    yield start.encode()
    async for text in texts:
        yield escape(text).encode(errors="replace")
    yield end.encode()


PLAIN_PAGE_HEADERS: Final = {
    **SECURITY_HEADERS,
    "Content-Security-Policy": _NOTICE_POLICY.format(forms="'none'"),
    "Cache-Control": "no-store",
}


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
    """Serves the web interface at `/`, or a 404 with build instructions if it is not built."""

    async def index(_: Request) -> Response:
        file = static_dir / "index.html"
        if not file.is_file():
            return make_notice(
                "The web interface is not built",
                "Quire runs here from a source tree or from a wheel without it. In the source tree, `just web` "
                "builds it; that needs Node.js. The API under `/api` works without it.",
                status=404,
            )
        return FileResponse(file, headers={**SECURITY_HEADERS, "Cache-Control": "no-cache"})

    async def icon(_: Request) -> Response:
        file = static_dir / "favicon.svg"
        if not file.is_file():
            raise HTTPException(404, "There is no icon, because the web interface is not built; run `just web`.")
        return FileResponse(file, headers={**SECURITY_HEADERS, "Cache-Control": "public, max-age=86400"})

    async def preview(_: Request) -> Response:
        html = f'<!doctype html><meta charset="utf-8"><title>Preview</title><script>{_PREVIEW_SCRIPT}</script>'
        headers = {**SECURITY_HEADERS, "Content-Security-Policy": _PREVIEW_POLICY, "Cache-Control": "no-cache"}
        return HTMLResponse(html, headers=headers)

    app.add_route("/", index, include_in_schema=False)
    app.add_route("/preview", preview, include_in_schema=False)
    app.add_route("/favicon.svg", icon, include_in_schema=False)
    app.mount("/assets", _ImmutableFiles(directory=static_dir / "assets", check_dir=False), name="assets")
