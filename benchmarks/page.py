"""The page with a conversation of 100,000 messages and 20 compactions, in Chromium, from `quire serve`.

Measures first paint and the newest message, compared with a conversation of ten messages; the jump to the first
message; and memory growth during random scrolling. The page must be built: `just web`.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

from playwright.async_api import Browser, CDPSession, Page, async_playwright

from quire.engine import open_engine
from quire.model import Compaction, Draft, Message, Span, TokenCount
from support import Report, run_benchmark

MESSAGE_COUNT = 100_000
COMPACTION_COUNT = 20
OPEN_GOAL_RATIO = 1.5
"""Time to open the long conversation, relative to one of ten messages in the same run."""
JUMP_GOAL_RATIO = 3.0
"""Time to jump to the first message, relative to opening the conversation of ten messages."""
GROWTH_GOAL_RATIO = 1.25
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-sync",
)

MESSAGE_TEXTS = (
    "High water at the bar comes {number} minutes later than at the harbour. **Half a metre** more with wind from the "
    "south-west.\n\n- leave on the flood,\n- cross at half tide [#{number}],\n- see [[Tides]].",
    "And on day {number}?",
)


async def create_conversations(url: str, messages: int) -> None:
    async with open_engine(url, context_background_threshold=None) as engine:
        short = await engine.conversation("short")
        await short.append(*(MESSAGE_TEXTS[number % 2].format(number=number) for number in range(10)))
        await engine.conversation("long")
        each = messages // COMPACTION_COUNT
        previous = None
        for number in range(COMPACTION_COUNT):
            messages_ = [_make_message(number * each + index) for index in range(each)]
            drafts = [Draft(body=message, tokens=TokenCount(40, "estimate")) for message in messages_]
            last = (await engine.store.append("long", *drafts))[-1].seq
            body = Compaction(
                number=number + 1,
                covers=Span(first=1, last=last - 20),
                summary=f"Planned up to day {last} [#{last - 30}].",
                tokens_before=each * 40,
                tokens_after=900,
                supersedes=previous,
            )
            previous = (await engine.store.append("long", body))[-1].seq


def _make_message(number: int) -> Message:
    text = MESSAGE_TEXTS[(number + 1) % 2].format(number=number)
    return Message.assistant(text) if number % 2 else Message.user(text)


@contextmanager
def run_quire_serve(folder: Path, url: str) -> Iterator[str]:
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
async def open_page(browser: Browser, address: str, conversation: str) -> AsyncGenerator[Page]:
    """Opens a conversation in a browser context without a cache."""
    context = await browser.new_context(viewport={"width": 1360, "height": 860})
    page = await context.new_page()
    await page.goto(f"{address}#/c/{conversation}")
    yield page
    await context.close()


async def measure_paint(browser: Browser, address: str, conversation: str) -> tuple[float, float]:
    """Measures seconds to the first contentful paint, and to the newest entry."""
    async with open_page(browser, address, conversation) as page:
        await page.wait_for_selector("article[data-seq]")
        newest = await page.evaluate("performance.now()")
        paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return paint / 1_000, newest / 1_000


async def measure_jump_to_first(page: Page) -> float:
    """Measures seconds from the Home key to the first message in view."""
    await page.get_by_role("group", name="Transcript").focus()
    began = await page.evaluate("performance.now()")
    await page.keyboard.press("Home")
    await page.wait_for_function(
        "() => document.querySelector('article[data-seq=\"1\"]')?.getBoundingClientRect().top >= 0"
    )
    return (await page.evaluate("performance.now()") - began) / 1_000


async def scroll_randomly(page: Page, visits: int, random: Random) -> None:
    """Scrolls to random places and then to the middle; waits for an entry in view each time."""
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


async def measure_memory(devtools: CDPSession) -> tuple[float, float]:
    """Measures megabytes of the JavaScript heap after garbage collection, and DOM nodes."""
    for _ in range(2):
        await devtools.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in (await devtools.send("Performance.getMetrics"))["metrics"]}
    return found["JSHeapUsedSize"] / 1e6, found["Nodes"]


async def measure_frames(page: Page, wheel_steps: Iterable[int], *, place: tuple[int, int] = (680, 430)) -> list[float]:
    """Measures milliseconds between frames while the wheel turns by these pixels, with the pointer at `place`."""
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
    await page.mouse.move(*place)
    for pixels in wheel_steps:
        await page.mouse.wheel(0, pixels)
        await asyncio.sleep(0.016)
    return await page.evaluate("() => { cancelAnimationFrame(window.ticking); return window.intervals; }")


async def run(*, quick: bool) -> Report:
    report = Report("page")
    folder = Path(tempfile.mkdtemp())
    messages, rounds, visits = (20_000, 3, 40) if quick else (MESSAGE_COUNT, 7, 120)
    try:
        url = f"sqlite:///{folder}/quire.db"
        await create_conversations(url, messages)
        with run_quire_serve(folder, url) as address:
            async with async_playwright() as playwright:
                chromium = shutil.which("chromium") or "/usr/bin/chromium"
                browser = await playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM_ARGUMENTS))
                await measure_paint(browser, address, "short")  # So that the server has loaded what it loads once.
                await measure_page(report, browser, address, messages=messages, rounds=rounds, visits=visits)
                await browser.close()
    finally:
        shutil.rmtree(folder)
    return report


async def measure_page(
    report: Report, browser: Browser, address: str, *, messages: int, rounds: int, visits: int
) -> None:
    pairs = [
        (await measure_paint(browser, address, "short"), await measure_paint(browser, address, "long"))
        for _ in range(rounds)
    ]
    rows = [
        (name, *(statistics.median(pair[place][what] for pair in pairs) for what in (0, 1)))
        for place, name in enumerate(("10 messages", f"{messages:,} messages"))
    ]
    report.print_table("seconds in a new browser, median", ("conversation", "first paint", "newest entry"), rows)
    async with open_page(browser, address, "long") as page:
        await page.wait_for_selector("article[data-seq]")
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("Performance.enable")
        first = await measure_jump_to_first(page)
        random = Random(1)
        await scroll_randomly(page, visits // 3, random)
        heap, nodes = await measure_memory(devtools)
        await scroll_randomly(page, visits, random)
        later, more = await measure_memory(devtools)
        taken = sorted(await measure_frames(page, [240] * 150))
    report.print_table(
        "while scrolling at random",
        ("places visited", "heap MB", "nodes"),
        [(visits // 3, heap, int(nodes)), (visits + visits // 3, later, int(more))],
    )
    report.print_table(
        "milliseconds between frames at the wheel",
        ("median", "19 of 20 under", "longest"),
        [(statistics.median(taken), taken[int(len(taken) * 0.95)], taken[-1])],
    )
    short, long = rows
    report.require_at_most("first_paint_growth", float(long[1]) / float(short[1]), OPEN_GOAL_RATIO)
    report.require_at_most("newest_entry_growth", float(long[2]) / float(short[2]), OPEN_GOAL_RATIO)
    report.require_at_most("first_message_over_open", first / float(short[2]), JUMP_GOAL_RATIO)
    report.require_at_most("heap_growth", later / heap, GROWTH_GOAL_RATIO)
    report.require_at_most("node_growth", more / nodes, GROWTH_GOAL_RATIO)


if __name__ == "__main__":
    run_benchmark(run)
