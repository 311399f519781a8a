"""Takes the screenshots of the web interface and of insights: python docs/picture/page.py [--only NAME].

Needs the built page and Chromium. The labels in each picture are stored beside it, in labels.json, so that a test finds
pictures whose words are no longer in the source.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "web"), str(HERE.parents[1] / "tests"), str(HERE.parents[1] / "tests" / "page")]

from playwright.async_api import Browser, Page, async_playwright  # noqa: E402
from test_insights_page import create_turns  # noqa: E402

import demo  # noqa: E402
from infra.agent_sessions import AgentSessions, create_agent_sessions, create_summarized_session  # noqa: E402
from infra.long_turn import QUESTION, make_steps  # noqa: E402
from infra.picture_sessions import create_agent_turn, create_long_chat, import_claude_code_session  # noqa: E402
from quire.engine import Engine  # noqa: E402
from quire.model import Message  # noqa: E402
from quire.server.addresses import bind_socket  # noqa: E402
from quire.server.app import create_app  # noqa: E402
from quire.server.lifecycle import run_server  # noqa: E402
from quire.server.state import ServerState  # noqa: E402
from quire.store import DEFAULT_TENANT  # noqa: E402

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
TOKEN = "only-for-pictures"  # noqa: S105
LABELS = HERE / "labels.json"
READ_LABELS = """() => [...document.querySelectorAll('button, h2, h3, label, summary, th, legend, option')]
    .filter((each) => each.checkVisibility() && [...each.children].every((child) => child.tagName === 'svg'))
    .map((each) => each.textContent.trim())
    .filter((text) => /^[A-Z][A-Za-z ,?]{2,40}$/.test(text))"""
"""The words of controls and headings; names and numbers are content."""
WIDE = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 800}


GROUPS = ("page", "timeline", "agents", "insights")


async def take_group(group: str) -> None:
    """Takes the pictures of a group. Each has a store of its own, so that no picture shows what is for another."""
    with tempfile.TemporaryDirectory() as folder:
        async with demo.open_demo(Path(folder)) as state:
            conversation_id = await demo.create_demo_conversation(state)
            with bind_socket("127.0.0.1", 0) as listener:
                serving = asyncio.create_task(run_server(create_app(state, token=TOKEN), listener, grace_seconds=0))
                port = listener.getsockname()[1]
                address = f"http://127.0.0.1:{port}/?token={TOKEN}#/c"
                engine = state.engine_for(DEFAULT_TENANT)
                match group:
                    case "page":
                        long_turn_id = await create_long_turn(state)
                        await take_pictures(f"{address}/{conversation_id}", f"{address}/{long_turn_id}")
                    case "timeline":
                        await take_timeline_pictures(address, engine, Path(folder))
                    case "agents":
                        sessions = await create_agent_sessions(state.store)
                        await take_agent_pictures(address, sessions, await create_summarized_session(state.store))
                    case _:
                        await create_turns(state.store)
                        await take_insights_pictures(f"{address}/{conversation_id}")
                serving.cancel()


async def create_long_turn(state: ServerState) -> str:
    """A turn of thirty steps in the demo's small window, with one failed call."""
    engine = state.engine_for(DEFAULT_TENANT)
    record = await engine.store.create_conversation(title="Audit of the ledger")
    conversation = await engine.conversation(record.id)
    question: str | None = QUESTION
    for number, step in enumerate(make_steps(30, result_tokens=(50, 900), huge_result_tokens=3_000)):
        request = await conversation.prepare(question)
        await conversation.record(step.reply, request=request)
        results = list(step.results)
        if number == 25:
            call = step.reply.tool_calls[0]
            results[0] = Message.tool(call.id, "The module is locked by another audit.", is_error=True)
        await conversation.append(*results)
        question = None
    answer = "All modules are audited. **Quay 3** has the largest total; the locked module is left for tomorrow."
    await conversation.record(answer, request=await conversation.prepare())
    return record.id


@asynccontextmanager
async def launch_browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        chromium = shutil.which("chromium") or "/usr/bin/chromium"
        browser = await playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield browser
        await browser.close()


async def take_timeline_pictures(address: str, engine: Engine, folder: Path) -> None:
    """The picture of all requests: a long chat, one turn of many calls, an import."""
    chat, turn = await create_long_chat(engine), await create_agent_turn(engine)
    imported = await import_claude_code_session(engine, folder / "transcripts")
    pictures = {
        "page-timeline": (chat, {}),
        "page-timeline-phone": (chat, {"phone": True}),
        "page-timeline-agent": (turn, {}),
        "page-timeline-agent-dark": (turn, {"dark": True}),
        "page-timeline-import": (imported, {}),
    }
    async with launch_browser() as browser:
        for name, (conversation, options) in pictures.items():
            page = await open_page(browser, f"{address}/{conversation}", **{"dark": False, **options})
            await page.get_by_role("slider", name="Request").wait_for()
            # They are computed after the picture.
            await page.get_by_text("the cache broke").wait_for(state="attached")
            await take_screenshot(page, name)


async def take_agent_pictures(address: str, sessions: AgentSessions, summarized: str) -> None:
    """The list with projects and sub-agents, and a conversation that Claude Code compacted, in both themes."""
    async with launch_browser() as browser:
        for suffix in ("", "-dark"):
            dark = bool(suffix)
            listed = await open_page(browser, f"{address}/{sessions.codex}", "panel=context&reply=5", dark=dark)
            await listed.get_by_text("2 side calls").click()
            await take_screenshot(listed, f"page-agents{suffix}")
            compacted = await open_page(browser, f"{address}/{summarized}", "branch=0", dark=dark)
            marker = compacted.get_by_role("article", name="Compaction by Claude Code")
            await marker.get_by_role("button").first.click()
            await marker.hover()
            await compacted.mouse.wheel(0, 110)
            await take_screenshot(compacted, f"page-agent-compaction{suffix}")


async def take_insights_pictures(address: str) -> None:
    async with launch_browser() as browser:
        for suffix in ("", "-dark", "-phone"):
            page = await open_page(browser, address, dark=suffix == "-dark", phone=suffix == "-phone")
            if suffix == "-phone":
                await page.get_by_role("button", name="Conversations").click()
            await page.get_by_role("button", name="Insights").click()
            await page.get_by_role("dialog", name="Insights").get_by_text("By day").wait_for()
            await take_screenshot(page, f"page-insights{suffix}")


async def take_pictures(address: str, long_turn_address: str) -> None:
    async with launch_browser() as browser:
        await take_story(await open_page(browser, address, dark=False))
        await take_screenshot(
            await open_page(browser, address, "at=14&panel=context&reply=15", dark=False), "page-context"
        )
        for suffix in ("", "-dark"):
            window = await open_page(browser, address, "panel=window", dark=bool(suffix))
            await take_screenshot(window, f"page-window{suffix}")
        await take_screenshot(await open_page(browser, address, "at=3&panel=references", dark=False), "page-references")
        await take_screenshot(await open_page(browser, address, dark=False, phone=True), "page-phone")
        for dark in (False, True):
            name = "page-long-turn-dark" if dark else "page-long-turn"
            page = await open_page(browser, long_turn_address, "panel=window" if dark else "", dark=dark)
            if not dark:
                await page.get_by_role("article", name="Steps of the turn").last.get_by_role("button").first.click()
            await take_screenshot(page, name)
        settings = await open_page(browser, address, "panel=settings", dark=False)
        await settings.get_by_label("Compact at").fill("0.25")
        await take_screenshot(settings, "page-settings")


async def take_story(page: Page) -> None:
    await page.get_by_role("article", name="Compaction 2").get_by_role("button").first.click()
    await take_screenshot(page, "page-story")


async def open_page(browser: Browser, address: str, query: str = "", *, dark: bool, phone: bool = False) -> Page:
    context = await browser.new_context(
        viewport=PHONE if phone else WIDE,  # type: ignore[arg-type]
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        has_touch=phone,
        is_mobile=phone,
    )
    page = await context.new_page()
    await page.goto(f"{address}?{query}" if query else address)
    await page.locator("header .meter .bar").wait_for()
    await page.wait_for_timeout(1_000)
    return page


async def take_screenshot(page: Page, name: str) -> None:
    await page.wait_for_function("!document.body.innerText.includes('Loading…')")
    await page.wait_for_timeout(700)
    await page.evaluate("document.activeElement?.blur()")
    labels: list[str] = await page.evaluate(READ_LABELS)
    stored = json.loads(LABELS.read_text()) if LABELS.exists() else {}
    stored[name] = sorted(set(labels))
    LABELS.write_text(json.dumps(dict(sorted(stored.items())), indent=1, ensure_ascii=False) + "\n")
    await page.screenshot(path=HERE / f"{name}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=GROUPS, help="take only some of the pictures")
    only: str | None = parser.parse_args().only
    for group in [only] if only else GROUPS:
        asyncio.run(take_group(group))
