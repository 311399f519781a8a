"""How the page carries a conversation of 100,000 messages with 20 compactions, in Chromium, from `quire serve`.

How soon it is painted and shows the newest message, beside a conversation of ten; whether one gets to the first
message; and whether memory stays flat while one wanders about in it. The page must be built: `just web`.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

from playwright.async_api import Browser, CDPSession, Page, async_playwright

from quire.engine import open_engine
from quire.model import Compaction, Draft, Message, Span, TokenCount
from support import Report, main

MESSAGES = 100_000
COMPACTIONS = 20
PAINT_GOAL = 1.5
FIRST_GOAL = 5.0
"""Seconds to the first message; the issue only wants that one gets there."""
GROWTH_GOAL = 1.25
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")

SAID = (
    "High water at the bar comes {number} minutes later than at the harbour. **Half a metre** more with wind from the "
    "south-west.\n\n- leave on the flood,\n- cross at half tide [#{number}],\n- see [[Tides]].",
    "And on day {number}?",
)


async def fill(url: str, messages: int) -> None:
    async with open_engine(url, context_background_threshold=None) as engine:
        short = await engine.conversation("short")
        await short.append(*(SAID[number % 2].format(number=number) for number in range(10)))
        await engine.conversation("long")
        each = messages // COMPACTIONS
        beneath = None
        for number in range(COMPACTIONS):
            spoken = [_message(number * each + place) for place in range(each)]
            drafts = [Draft(body=said, tokens=TokenCount(40, "estimate")) for said in spoken]
            last = (await engine.store.append("long", *drafts))[-1].seq
            body = Compaction(
                number=number + 1,
                covers=Span(first=1, last=last - 20),
                summary=f"Planned up to day {last} [#{last - 30}].",
                tokens_before=each * 40,
                tokens_after=900,
                supersedes=beneath,
            )
            beneath = (await engine.store.append("long", body))[-1].seq


def _message(number: int) -> Message:
    text = SAID[(number + 1) % 2].format(number=number)
    return Message.assistant(text) if number % 2 else Message.user(text)


@contextmanager
def quire_serve(folder: Path, url: str) -> Iterator[str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    environ = {**others, "HOME": str(folder), "QUIRE_DATABASE_URL": url}
    command = [str(Path(sys.executable).with_name("quire")), "serve", "--port", "0", "--grace", "0"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


@asynccontextmanager
async def window(browser: Browser, address: str, conversation: str) -> AsyncGenerator[Page]:
    """A browser that has never seen the page, looking at a conversation."""
    context = await browser.new_context(viewport={"width": 1360, "height": 860})
    page = await context.new_page()
    await page.goto(f"{address}#/c/{conversation}")
    yield page
    await context.close()


async def painted(browser: Browser, address: str, conversation: str) -> tuple[float, float]:
    """Seconds to the first paint with content, and until the newest entry can be read."""
    async with window(browser, address, conversation) as page:
        await page.wait_for_selector("article[data-seq]")
        shown = await page.evaluate("performance.now()")
        paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return paint / 1_000, shown / 1_000


async def to_first(page: Page) -> float:
    """Seconds from the key to the first message in sight."""
    await page.get_by_role("group", name="Transcript").focus()
    began = await page.evaluate("performance.now()")
    await page.keyboard.press("Home")
    await page.wait_for_function(
        "() => document.querySelector('article[data-seq=\"1\"]')?.getBoundingClientRect().top >= 0"
    )
    return (await page.evaluate("performance.now()") - began) / 1_000


async def wander(page: Page, visits: int, random: Random) -> None:
    """Drags the scroll bar all over the conversation, and to its middle at last; waits for something to read."""
    for part in (*(random.random() for _ in range(visits)), 0.5):
        await page.evaluate(
            "part => { const box = document.querySelector('.scroll'); box.scrollTop = part * box.scrollHeight; }", part
        )
        await page.wait_for_function(
            """() => {
                const box = document.querySelector('.scroll').getBoundingClientRect();
                return [...document.querySelectorAll('article')].some((one) => {
                    const own = one.getBoundingClientRect();
                    return own.top < box.bottom && own.bottom > box.top;
                });
            }"""
        )


async def used(devtools: CDPSession) -> tuple[float, float]:
    """Megabytes of the script's heap after a collection, and nodes of the document."""
    for _ in range(2):
        await devtools.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in (await devtools.send("Performance.getMetrics"))["metrics"]}
    return found["JSHeapUsedSize"] / 1e6, found["Nodes"]


async def frames(page: Page, steps: int) -> list[float]:
    """Milliseconds between frames while the wheel turns."""
    await page.evaluate(
        """() => {
            window.intervals = [];
            let last = performance.now();
            const tick = (now) => {
                intervals.push(now - last);
                last = now;
                window.ticking = requestAnimationFrame(tick);
            };
            window.ticking = requestAnimationFrame(tick);
        }"""
    )
    await page.mouse.move(680, 430)
    for _ in range(steps):
        await page.mouse.wheel(0, 240)
        await asyncio.sleep(0.016)
    return await page.evaluate("() => { cancelAnimationFrame(window.ticking); return window.intervals; }")


async def run(*, quick: bool) -> Report:
    report = Report("page")
    folder = Path(tempfile.mkdtemp())
    messages, rounds, visits = (20_000, 3, 40) if quick else (MESSAGES, 7, 120)
    try:
        url = f"sqlite:///{folder}/quire.db"
        await fill(url, messages)
        with quire_serve(folder, url) as address:
            async with async_playwright() as playwright:
                chromium = shutil.which("chromium") or "/usr/bin/chromium"
                browser = await playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
                await painted(browser, address, "short")  # So that the server has loaded what it loads once.
                await measure(report, browser, address, messages=messages, rounds=rounds, visits=visits)
                await browser.close()
    finally:
        shutil.rmtree(folder)
    return report


async def measure(report: Report, browser: Browser, address: str, *, messages: int, rounds: int, visits: int) -> None:
    pairs = [(await painted(browser, address, "short"), await painted(browser, address, "long")) for _ in range(rounds)]
    rows = [
        (name, *(statistics.median(pair[place][what] for pair in pairs) for what in (0, 1)))
        for place, name in enumerate(("10 messages", f"{messages:,} messages"))
    ]
    report.table("seconds in a new browser, median", ("conversation", "first paint", "newest shown"), rows)
    async with window(browser, address, "long") as page:
        await page.wait_for_selector("article[data-seq]")
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("Performance.enable")
        first = await to_first(page)
        random = Random(1)
        await wander(page, visits // 3, random)
        heap, nodes = await used(devtools)
        await wander(page, visits, random)
        later, more = await used(devtools)
        taken = sorted(await frames(page, 150))
    report.table(
        "while wandering",
        ("places seen", "heap MB", "nodes"),
        [(visits // 3, heap, int(nodes)), (visits + visits // 3, later, int(more))],
    )
    report.table(
        "milliseconds between frames at the wheel",
        ("median", "19 of 20 under", "longest"),
        [(statistics.median(taken), taken[int(len(taken) * 0.95)], taken[-1])],
    )
    report.at_most("first_paint_seconds", float(rows[1][1]), PAINT_GOAL)
    report.at_most("newest_shown_seconds", float(rows[1][2]), PAINT_GOAL)
    report.at_most("to_first_message_seconds", first, FIRST_GOAL)
    report.at_most("heap_growth", later / heap, GROWTH_GOAL)
    report.at_most("node_growth", more / nodes, GROWTH_GOAL)


if __name__ == "__main__":
    main(run)
