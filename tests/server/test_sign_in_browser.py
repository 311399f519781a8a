"""Sign-in in a real browser: to the provider, back to the page, a shared link, and out again."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from server_helpers import ScriptedAgent
from sign_in_helpers import PEOPLE, serve_team

from infra.oidc_provider import find_free_port, run_provider
from quire.server.page import STATIC_DIR
from quire.store import SqlStore

if TYPE_CHECKING:
    from playwright.async_api import Page

CHROMIUM = shutil.which("chromium")
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


async def sign_in(page: "Page", name: str) -> None:
    await page.fill("input[name=login]", name)
    await page.fill("input[name=password]", "any")
    await page.click("button[type=submit]")
    # The provider's question whether the client may know the name.
    await page.click("button[type=submit]")


@contextmanager
def run_tls_proxy(folder: Path, port: int, backend: int) -> Iterator[None]:
    """HAProxy with a certificate that it signed itself, before the server at the port `backend`."""
    assert HAPROXY is not None
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    certificate += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run(certificate, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "certificate.pem").read_text() + (folder / "key.pem").read_text())
    (folder / "haproxy.cfg").write_text(
        f"""
        defaults
            mode http
            option forwardfor
            timeout connect 5s
            timeout client 60s
            timeout server 60s
        frontend people
            bind 127.0.0.1:{port} ssl crt {folder}/both.pem
            default_backend quire
        backend quire
            server node 127.0.0.1:{backend}
"""
    )
    with subprocess.Popen([HAPROXY, "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL) as proxy:
        try:
            for _ in range(200):
                # No request: the server answers in the event loop that waits here.
                with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            assert proxy.poll() is None, "HAProxy did not start"
            yield
        finally:
            proxy.terminate()


@pytest.mark.slow
async def test_a_person_signs_in_with_a_browser_reads_a_shared_link_and_signs_out(
    store: SqlStore, scripted: ScriptedAgent
):
    if CHROMIUM is None:
        message = "CHROMIUM IS NOT INSTALLED: no sign-in is tested in a browser"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    if not (STATIC_DIR / "index.html").is_file():
        message = "THE PAGE IS NOT BUILT: no sharing is tested in a browser"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    from playwright.async_api import async_playwright

    port = find_free_port()
    with run_provider(f"http://127.0.0.1:{port}/auth/callback") as provider:
        provider.command(groups=PEOPLE)
        async with serve_team(store, provider, scripted, port=port) as team, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            ann = await (await browser.new_context()).new_page()
            await ann.goto(f"{team.url}/auth/login?return_to=/auth/account")
            await sign_in(ann, "ann")
            await ann.wait_for_url(f"{team.url}/auth/account")
            assert "ann@example.org, member of harbour" in await ann.inner_text("main")
            [cookie] = [
                each for each in await ann.context.cookies(team.url) if each["name"].startswith("quire-session")
            ]
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
            await ann.goto(team.url)
            await ann.evaluate(
                """async () => {
                    const send = (method, path, body) => fetch(path, {
                        method, headers: {'content-type': 'application/json'}, body: JSON.stringify(body)});
                    await send('POST', '/api/conversations', {id: 'c'});
                    await send('POST', '/api/conversations/c/messages', {messages: ['The gannet dives.']});
                }"""
            )
            await ann.context.grant_permissions(["clipboard-read", "clipboard-write"])
            await ann.goto(f"{team.url}/#/c/c")

            async def share(audience: str, button: str, notice: str) -> None:
                await ann.get_by_role("button", name="Share", exact=True).click()
                await ann.get_by_role("radio", name=audience).check()
                if audience == "These people":
                    await ann.get_by_role("textbox", name="Email addresses").fill("ben@example.org")
                await ann.get_by_role("button", name=button).click()
                await ann.get_by_text(notice).wait_for()

            await share("Everyone who signs in here", "Share and copy link", "Shared. The link is copied.")
            link = await ann.evaluate("navigator.clipboard.readText()")
            # Another person opens the link, and comes back to it after the sign-in.
            ben = await (await browser.new_context()).new_page()
            await ben.goto(link)
            await sign_in(ben, "ben")
            await ben.wait_for_url(link)
            assert "The gannet dives." in await ben.inner_text("main")
            await ann.reload()
            await share("These people", "Share and copy link", "Shared. The link is copied.")
            assert "The gannet dives." in await (await ben.context.request.get(link)).text()
            await ann.reload()
            await ann.get_by_role("button", name="Share", exact=True).click()
            assert await ann.get_by_role("textbox", name="Email addresses").input_value() == "ben@example.org"
            await ann.get_by_role("button", name="Cancel").click()
            await share("Only me", "Stop sharing", "The conversation is not shared any more.")
            assert (await ben.context.request.get(link)).status == 404
            await ann.goto(f"{team.url}/auth/account")
            await ann.click("text=Sign out")
            # The provider asks whether its own session ends too.
            await ann.click("button[value=yes]")
            await ann.wait_for_url(f"{team.url}/auth/out*")
            assert (await ann.context.request.get(f"{team.url}/api/conversations")).status == 401
            await browser.close()


@pytest.mark.slow
async def test_over_https_the_cookies_are_of_this_host_alone(store: SqlStore, scripted: ScriptedAgent, tmp_path: Path):
    """Behind a proxy with TLS, as `docs/sign-in.md` has it: `__Host-` cookies, for this host and over TLS only."""
    if CHROMIUM is None or HAPROXY is None:
        message = "CHROMIUM OR HAPROXY IS NOT INSTALLED: no sign-in is tested over https"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    from playwright.async_api import async_playwright

    port, backend = find_free_port(), find_free_port()
    url = f"https://127.0.0.1:{port}"
    with run_provider(f"{url}/auth/callback") as provider:
        provider.command(groups=PEOPLE)
        async with serve_team(store, provider, scripted, port=backend, url=url), async_playwright() as playwright:
            with run_tls_proxy(tmp_path, port, backend):
                browser = await playwright.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
                )
                context = await browser.new_context(ignore_https_errors=True)
                ann = await context.new_page()
                await ann.goto(f"{url}/auth/login?return_to=/auth/account")
                # The provider is on another port of the same host, and browsers share cookies between ports. What it
                # plants opens nothing, and the sign-in replaces it.
                await ann.evaluate("document.cookie = '__Host-quire-session=planted; Path=/; Secure'")
                assert (await context.request.get(f"{url}/api/conversations")).status == 401
                pending = {each["name"]: each for each in await context.cookies(url)}["__Host-quire-pending"]
                assert (pending["secure"], pending["httpOnly"], pending["path"]) == (True, True, "/")
                await sign_in(ann, "ann")
                await ann.wait_for_url(f"{url}/auth/account")
                assert "ann@example.org, member of harbour" in await ann.inner_text("main")
                cookies = {each["name"]: each for each in await context.cookies(url) if "quire" in each["name"]}
                assert set(cookies) == {"__Host-quire-session"}
                session = cookies["__Host-quire-session"]
                assert session["value"] != "planted"
                assert (session["secure"], session["httpOnly"], session["path"]) == (True, True, "/")
                assert (session["domain"], session["sameSite"]) == ("127.0.0.1", "Lax")
                assert await ann.evaluate("document.cookie") == ""
                # The account page may fetch nothing (CSP), so the request is made beside it, with its cookies.
                created = await context.request.post(f"{url}/api/conversations", data={}, headers={"origin": url})
                assert created.status == 201, await created.text()
                # A server without TLS would not get the cookie, nor take it under the name for http.
                async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{backend}") as plain:
                    name = f"quire-session-{port}"
                    refused = await plain.get("/api/conversations", headers={"cookie": f"{name}={session['value']}"})
                    assert refused.status_code == 401
                await ann.click("text=Sign out")
                await ann.click("button[value=yes]")
                await ann.wait_for_url(f"{url}/auth/out*")
                assert not any("quire" in each["name"] for each in await context.cookies(url))
                await browser.close()
