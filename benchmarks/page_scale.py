"""The page with 10,000 conversations in its list, and with a turn of 1,000 tool calls, in Chromium, from `quire serve`.

Each is compared with ten in the same run: first paint, the first row or entry, frames at the wheel, and memory while
the list is scrolled and calls are opened and closed. The page must be built: `just web`.
"""

import shutil
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from infra.long_turn import QUESTION, make_steps
from page import CHROMIUM_ARGUMENTS, measure_frames, measure_memory, run_quire_serve
from quire.engine import open_engine
from quire.model import Draft, Message, TokenCount
from support import Report, run_benchmark

SMALL_COUNT = 10
CONVERSATION_COUNT = 10_000
CALL_COUNT = 1_000
GOAL_RATIO = 1.3
HEAP_GOAL_RATIO = 1.1
VIEWPORT_HEIGHT = 420
"""Low enough that a list of ten scrolls too."""
WHEEL_STEPS = ([60] * 12 + [-60] * 12) * 10
LIST_PLACE = (130, 250)
TRANSCRIPT_PLACE = (700, 200)
ROW = "nav li a"
ENTRY = "article[data-seq]"

MeasureFunction = Callable[[Page], Coroutine[Any, Any, tuple[float, ...]]]


def make_turn(call_count: int) -> list[Message]:
    """A question, steps until they have that many calls, and the answer."""
    messages = [Message.user(QUESTION)]
    calls = 0
    for step in make_steps(call_count, result_tokens=(50, 1_500), huge_result_tokens=3_000):
        if calls >= call_count:
            break
        messages += [step.reply, *step.results]
        calls += len(step.results)
    return [*messages, Message.assistant("All modules are audited.")]


async def create_data(url: str, *, conversations: int, turns: dict[str, int]) -> None:
    """Conversations, and turns with their numbers of calls by the id of their conversation."""
    async with open_engine(url, context_background_threshold=None) as engine:
        for name, calls in turns.items():
            await engine.conversation(name)
            tokens = TokenCount(40, "estimate")
            await engine.store.append(name, *(Draft(body=each, tokens=tokens) for each in make_turn(calls)))
        for number in range(conversations - len(turns)):
            await engine.store.create_conversation(title=f"Day {number}: high water, and half a metre more with wind")


@asynccontextmanager
async def open_address(browser: Browser, address: str, selector: str) -> AsyncGenerator[Page]:
    """Opens an address in a browser context without a cache, and waits for a selector."""
    context = await browser.new_context(viewport={"width": 1360, "height": VIEWPORT_HEIGHT})
    page = await context.new_page()
    await page.goto(address)
    await page.wait_for_selector(selector)
    yield page
    await context.close()


async def measure_paint(browser: Browser, address: str, selector: str) -> tuple[float, ...]:
    """Measures milliseconds to the first paint, to the first element of a selector, and of the main thread."""
    context = await browser.new_context(viewport={"width": 1360, "height": VIEWPORT_HEIGHT})
    page = await context.new_page()
    devtools = await context.new_cdp_session(page)
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    await page.goto(address)
    await page.wait_for_selector(selector)
    seen = await page.evaluate("performance.now()")
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    metrics = {each["name"]: each["value"] for each in (await devtools.send("Performance.getMetrics"))["metrics"]}
    await context.close()
    return paint, seen, metrics["TaskDuration"] * 1_000


async def scroll_list(page: Page) -> tuple[float, ...]:
    await page.wait_for_timeout(500)
    return summarize_frames(await measure_frames(page, WHEEL_STEPS, place=LIST_PLACE))


async def scroll_turn(page: Page) -> tuple[float, ...]:
    """Scrolls with the last group of calls open."""
    await page.locator(".steps > button").last.click()
    await page.wait_for_timeout(500)
    return summarize_frames(await measure_frames(page, [-each for each in WHEEL_STEPS], place=TRANSCRIPT_PLACE))


def summarize_frames(intervals: list[float]) -> tuple[float, float, float]:
    """Median, 95th percentile and maximum of the milliseconds between frames."""
    ordered = sorted(intervals)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.95)], ordered[-1]


async def load_whole_list(page: Page, count: int) -> None:
    """Scrolls to the end until every page of the list is loaded; each chunk of rows that was loaded has a place."""
    box = "document.querySelector('nav .rest')"
    while await page.locator("nav .more").count():
        await page.evaluate(f"{box}.scrollTop = {box}.scrollHeight")
        await page.wait_for_timeout(30)
    height = await page.evaluate(f"{box}.scrollHeight")
    assert height > count * 30, f"the list of {count} is only {height} px high"


async def visit_list(page: Page) -> None:
    for part in (0.0, 0.2, 0.9, 0.4, 0.6, 0.1, 1.0, 0.0):
        await page.evaluate(
            "part => { const box = document.querySelector('nav .rest'); box.scrollTop = part * box.scrollHeight; }",
            part,
        )
        await page.wait_for_timeout(60)


async def open_and_close_calls(page: Page) -> None:
    """Opens the last group of steps and its calls, scrolls through the turn, and closes the group again."""
    box = "document.querySelector('.scroll')"
    await page.evaluate(f"{box}.scrollTop = {box}.scrollHeight")
    await page.wait_for_timeout(200)
    group = page.locator(".steps").last
    await group.locator("> button").click()
    for call in (await group.locator("details.call > summary").all())[:10]:
        await call.evaluate("one => one.click()")
    for part in (0.5, 0.0, 1.0):
        await page.evaluate(f"part => {{ {box}.scrollTop = part * {box}.scrollHeight; }}", part)
        await page.wait_for_timeout(150)
    await page.locator(".steps").last.locator("> button").click()


async def measure_growth(
    page: Page, use: Callable[[Page], Coroutine[Any, Any, None]], rounds: int
) -> tuple[float, ...]:
    """Measures megabytes of heap and DOM nodes after some use, and after several times as much."""
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Performance.enable")
    for _ in range(2):
        await use(page)
    before = await measure_memory(devtools)
    for _ in range(rounds):
        await use(page)
    return (*before, *await measure_memory(devtools))


async def compare(
    report: Report,
    browser: Browser,
    name: str,
    addresses: tuple[str, str],
    selector: str,
    scroll: MeasureFunction,
    *,
    rounds: int,
) -> None:
    """Compares first paint and scrolling of a small and a large page, in alternation, by the least disturbed round."""
    measured: tuple[list[tuple[float, ...]], ...] = ([], [])
    for _ in range(rounds):
        for address, figures in zip(addresses, measured, strict=True):
            paint = await measure_paint(browser, address, selector)
            async with open_address(browser, address, selector) as page:
                figures.append((*paint, *await scroll(page)))
    small, large = ([min(column) for column in zip(*figures, strict=True)] for figures in measured)
    header = (name, "first paint", "first row", "CPU", "frame, median", "19 of 20 under", "longest")
    report.print_table("milliseconds, least of the rounds", header, [("10", *small), ("large", *large)])
    measures = ("first_paint", "first_row", "cpu", "frame_median", "frame_95th")
    for measure, few, many in zip(measures, small, large, strict=False):
        report.require_at_most(f"{name}_{measure}", many / few, GOAL_RATIO)


async def run(*, quick: bool) -> Report:
    report = Report("page_scale")
    conversations, calls, rounds = (1_000, 200, 3) if quick else (CONVERSATION_COUNT, CALL_COUNT, 7)
    folder = Path(tempfile.mkdtemp())
    try:
        async with AsyncExitStack() as stack:
            urls = [f"sqlite:///{folder}/{name}.db" for name in ("small", "large")]
            turns = {"turn-small": SMALL_COUNT, "turn-large": calls}
            await create_data(urls[0], conversations=SMALL_COUNT, turns=turns)
            await create_data(urls[1], conversations=conversations, turns={})
            small, large = (stack.enter_context(run_quire_serve(folder, url)) for url in urls)
            playwright = await stack.enter_async_context(async_playwright())
            chromium = shutil.which("chromium") or "/usr/bin/chromium"
            browser = await playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM_ARGUMENTS))
            for address in (small, large):
                await measure_paint(browser, address, ROW)  # So that the server has loaded what it loads once.
            await compare(report, browser, "list", (small, large), ROW, scroll_list, rounds=rounds)
            turn_addresses = (f"{small}#/c/turn-small", f"{small}#/c/turn-large")
            await compare(report, browser, "turn", turn_addresses, ENTRY, scroll_turn, rounds=rounds)
            async with open_address(browser, large, ROW) as page:
                await load_whole_list(page, conversations)
                list_growth = await measure_growth(page, visit_list, 10)
            async with open_address(browser, turn_addresses[1], ENTRY) as page:
                turn_growth = await measure_growth(page, open_and_close_calls, 10)
            await browser.close()
    finally:
        shutil.rmtree(folder)
    header = ("", "heap MB after 2 rounds", "nodes", "heap MB after 12", "nodes")
    report.print_table(
        "memory while scrolling, opening and closing", header, [("list", *list_growth), ("turn", *turn_growth)]
    )
    for name, (heap, nodes, later, more) in (("list", list_growth), ("turn", turn_growth)):
        report.require_at_most(f"{name}_heap_growth", later / heap, HEAP_GOAL_RATIO)
        report.require_at_most(f"{name}_node_growth", more / nodes, HEAP_GOAL_RATIO)
    return report


if __name__ == "__main__":
    run_benchmark(run)
