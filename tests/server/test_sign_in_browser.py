"""Sign-in in a real browser: to the provider, back to the page, a shared link, and out again."""

import os
import shutil

import pytest
from server_helpers import ScriptedAgent
from sign_in_helpers import PEOPLE, serve_team

from infra.oidc_provider import find_free_port, run_provider
from quire.store import SqlStore

CHROMIUM = shutil.which("chromium")


@pytest.mark.slow
async def test_a_person_signs_in_with_a_browser_reads_a_shared_link_and_signs_out(
    store: SqlStore, scripted: ScriptedAgent
):
    if CHROMIUM is None:
        message = "CHROMIUM IS NOT INSTALLED: no sign-in is tested in a browser"
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
            link = await ann.evaluate(
                """async () => {
                    const send = (method, path, body) => fetch(path, {
                        method, headers: {'content-type': 'application/json'}, body: JSON.stringify(body)});
                    await send('POST', '/api/conversations', {id: 'c'});
                    await send('POST', '/api/conversations/c/messages', {messages: ['The gannet dives.']});
                    const answer = await send('PUT', '/api/conversations/c/readers', {readers: ['*']});
                    return (await answer.json()).link;
                }"""
            )
            # Another person opens the link, and comes back to it after the sign-in.
            ben = await (await browser.new_context()).new_page()
            await ben.goto(link)
            await sign_in(ben, "ben")
            await ben.wait_for_url(link)
            assert "The gannet dives." in await ben.inner_text("main")
            await ann.goto(f"{team.url}/auth/account")
            await ann.click("text=Sign out")
            # The provider asks whether its own session ends too.
            await ann.click("button[value=yes]")
            await ann.wait_for_url(f"{team.url}/auth/out*")
            assert (await ann.context.request.get(f"{team.url}/api/conversations")).status == 401
            await browser.close()
