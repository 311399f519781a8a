"""Sign-in in a real browser: to the provider, back to the page, a shared link, and out again."""

import os
import shutil

import pytest
from server_helpers import ScriptedAgent
from sign_in_helpers import PEOPLE, serve_team

from infra.oidc_provider import find_free_port, run_provider
from quire.server.page import STATIC_DIR
from quire.store import SqlStore

CHROMIUM = shutil.which("chromium")


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
    from playwright.async_api import Page, async_playwright

    async def sign_in(page: Page, name: str) -> None:
        await page.fill("input[name=login]", name)
        await page.fill("input[name=password]", "any")
        await page.click("button[type=submit]")
        # The provider's question whether the client may know the name.
        await page.click("button[type=submit]")

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
