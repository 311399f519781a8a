"""Takes the pictures of docs/page.md: python docs/picture/page.py, with the page built and Chromium installed."""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "web"))

from playwright.async_api import Browser, Page, async_playwright  # noqa: E402

import demo  # noqa: E402
from quire.server.app import create_app  # noqa: E402
from quire.server.running import bind, run  # noqa: E402

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
TOKEN = "only-for-pictures"  # noqa: S105
WIDE = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 800}


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        async with demo.demo(Path(place)) as shared:
            made = await demo.fill(shared)
            with bind("127.0.0.1", 0) as listening:
                serving = asyncio.create_task(run(create_app(shared, token=TOKEN), listening, grace=0))
                await take(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={TOKEN}#/c/{made}")
                serving.cancel()


async def take(address: str) -> None:
    async with async_playwright() as playwright:
        chromium = shutil.which("chromium") or "/usr/bin/chromium"
        browser = await playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        await story(await opened(browser, address, dark=False))
        await shot(await opened(browser, address, "at=14&panel=context&reply=15", dark=False), "page-context")
        await shot(await opened(browser, address, "panel=window", dark=True), "page-window-dark")
        await shot(await opened(browser, address, "at=3&panel=references", dark=False), "page-references")
        await shot(await opened(browser, address, dark=False, phone=True), "page-phone")
        settings = await opened(browser, address, "panel=settings", dark=False)
        await settings.get_by_label("Context threshold").fill("0.25")
        await shot(settings, "page-settings")
        await browser.close()


async def story(page: Page) -> None:
    await page.get_by_role("article", name="Compaction 2").get_by_role("button").first.click()
    await shot(page, "page-story")


async def opened(browser: Browser, address: str, query: str = "", *, dark: bool, phone: bool = False) -> Page:
    context = await browser.new_context(
        viewport=PHONE if phone else WIDE,  # type: ignore[arg-type]
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        has_touch=phone,
        is_mobile=phone,
    )
    page = await context.new_page()
    await page.goto(f"{address}?{query}" if query else address)
    await page.wait_for_timeout(1_000)
    return page


async def shot(page: Page, name: str) -> None:
    await page.wait_for_timeout(700)
    await page.evaluate("document.activeElement?.blur()")
    await page.screenshot(path=HERE / f"{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
