"""Every state of the page in light, dark and on a phone: axe-core finds no fault, and targets fit a fingertip."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from accessibility_faults import VIEWPORTS, run_axe
from page_faults import collect_faults, save_picture
from page_server import PageServer, serve_page
from playwright.sync_api import Browser, Page, expect
from test_accessibility_tree import create_turn_with_failure
from test_chat_page import send_message
from test_daily_use import FAILURE, create_conversation, fail
from test_imports_page import DROP, EXPORT
from test_tool_calls import CALLS, import_session, open_call

from quire.errors import ModelRequestRejected
from quire.model import Message

pytestmark = pytest.mark.nightly

TARGET_PX = 44
SMALL_TARGETS = """(minimum) => {
    const kinds = "button, a[href], select, summary, input:not([type=checkbox]):not([type=file]), textarea";
    const isInText = (one) => one.matches(".link, .citation, .note, .prose a, .skip, .veil, svg *");
    // An overlay makes the rest unreachable.
    const root = document.querySelector("dialog[open]") ?? document;
    return [...root.querySelectorAll(kinds)].filter((one) => one.checkVisibility() && !isInText(one)).flatMap((one) => {
        const { width, height } = one.getBoundingClientRect();
        const place = one.closest("label, .search") ?? one;
        const tall = Math.max(height, place.getBoundingClientRect().height);
        const isSmall = Math.min(tall, width) < minimum - 0.5;
        return isSmall ? [`${one.outerHTML.slice(0, 110)} ${width}x${height}`] : [];
    });
}"""


CUT_TEXTS = """() => {
    const isScroller = (style) => /auto|scroll/.test(style.overflowX);
    // Text ends with an ellipsis, or is hidden on purpose.
    const isMarked = ({ textOverflow, webkitLineClamp, clipPath }) =>
        textOverflow === "ellipsis" || webkitLineClamp !== "none" || clipPath !== "none";
    const found = new Set();
    const root = document.querySelector("dialog[open]") ?? document.body;
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode;
        if (!text.data.trim() || !text.parentElement.checkVisibility({ visibilityProperty: true })) continue;
        const range = document.createRange();
        range.selectNodeContents(text);
        const { right, width } = range.getBoundingClientRect();
        let edge = document.documentElement.clientWidth;
        for (let box = text.parentElement; box; box = box.parentElement) {
            const style = getComputedStyle(box);
            if (isScroller(style) || isMarked(style)) edge = Infinity;
            else if (style.overflowX !== "visible") edge = Math.min(edge, box.getBoundingClientRect().right);
            if (edge === Infinity) break;
        }
        if (width && right > edge + 1) found.add(text.data.trim().slice(0, 80));
    }
    return [...found];
}"""
"""Texts that end at an edge in the middle of a word, without an ellipsis or a way to scroll to the rest."""


@dataclass
class Tour:
    """A window that goes from state to state and collects what is wrong in each."""

    page: Page
    server: PageServer
    viewport: str
    faults: list[str] = field(default_factory=list[str])

    def check(self, name: str) -> None:
        self.page.mouse.move(0, 0)
        found = run_axe(self.page)
        # Not `innerWidth`: on a phone it grows with what is too wide.
        if self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append("it is wider than the window")
        found += [f"cut text: {each}" for each in self.page.evaluate(CUT_TEXTS)]
        if self.viewport == "phone":
            found += [f"small target: {each}" for each in self.page.evaluate(SMALL_TARGETS, TARGET_PX)]
        self.faults += [f"{name}: {each}" for each in found]
        save_picture(self.page, f"{name}-{self.viewport}")

    def report(self) -> str:
        return "\n".join(self.faults)

    def open(self, conversation: str | None = None, **more: Any) -> None:
        self.page.goto("about:blank")
        self.page.goto(self.server.url(conversation, **more))
        if conversation:
            expect(self.page.get_by_role("article").last).to_be_visible()

    def close_dialog(self) -> None:
        """Closes the dialog; the first Escape may only clear its search field."""
        dialog = self.page.get_by_role("dialog")
        while dialog.count():
            self.page.keyboard.press("Escape")
            self.page.wait_for_timeout(50)

    def open_list(self) -> None:
        if self.viewport == "phone":
            self.page.get_by_role("button", name="Conversations").click()


@pytest.fixture(params=VIEWPORTS)
def start_tour(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Callable[[PageServer], Tour]]:
    viewport: str = request.param
    context = browser.new_context(reduced_motion="reduce", **VIEWPORTS[viewport])
    with collect_faults(context) as errors:
        yield lambda server: Tour(context.new_page(), server, viewport)
    context.close()
    assert errors == []


StartTour = Callable[[PageServer], Tour]


def test_the_first_screens(start_tour: StartTour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_page(tmp_path) as server:
        tour = start_tour(server)
        page = tour.page
        page.goto(f"http://127.0.0.1:{server.port}/")
        expect(page.get_by_role("heading", name="This address is not valid any more")).to_be_visible()
        tour.check("outdated-link")
        page.route(
            "**/api/**", lambda route: route.fulfill(status=401, json={"code": "unauthorized", "detail": "No key."})
        )
        tour.open()
        expect(page.get_by_role("dialog", name="This server requires an API key")).to_be_visible()
        tour.check("key-dialog")
        page.unroute("**/api/**")
        tour.open()
        expect(page.get_by_role("status", name="Model")).to_contain_text("gpt-4o answers")
        tour.check("first-screen")
        tour.open_list()
        expect(page.get_by_text("No conversations yet.")).to_be_visible()
        tour.check("empty-list")
        page.goto(server.url("no-such-conversation"))
        expect(page.get_by_role("alert")).to_be_visible()
        tour.check("not-found")

        def refuse(name: str) -> Any:
            raise ModelRequestRejected(f"The model {name} cannot be used: OPENAI_API_KEY is not set.")

        monkeypatch.setattr(server.server_state, "_model_factory", refuse)
        tour.open()
        expect(page.get_by_role("status", name="Model")).to_contain_text("OPENAI_API_KEY is not set")
        tour.check("model-cannot-answer")
    assert tour.report() == ""


def test_dialogs_and_the_list(start_tour: StartTour, page_server: PageServer, demo_conversation: str) -> None:
    tour = start_tour(page_server)
    page = tour.page
    tour.open(demo_conversation)
    page.get_by_role("button", name="Model: gpt-4o").click()
    expect(page.get_by_role("dialog").get_by_role("listitem").first).to_be_visible()
    tour.check("model-picker")
    page.get_by_role("searchbox", name="Model").fill("heron-1")
    tour.check("model-picker-unlisted")
    tour.close_dialog()
    page.keyboard.press("Tab")
    page.get_by_role("button", name=re.compile(r"More for #\d+")).last.click()
    tour.check("message-menu")
    page.get_by_role("menuitem", name="Erase this message permanently").click()
    tour.check("erase-dialog")
    tour.close_dialog()
    page.get_by_role("button", name="More actions").click()
    tour.check("menu")
    page.keyboard.press("Escape")
    tour.open_list()
    expect(page.get_by_role("navigation", name="Conversations")).to_be_visible()
    tour.check("list")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    tour.check("shortcuts")
    tour.close_dialog()
    page.get_by_role("button", name="Search", exact=True).click()
    tour.check("palette")
    page.keyboard.type("silt")
    expect(page.get_by_role("group", name="In messages")).to_be_visible()
    page.keyboard.press("ArrowDown")
    tour.check("search")
    page.get_by_role("combobox", name="Search and commands").fill("zzzzqq")
    expect(page.get_by_text("No message matches.")).to_be_visible()
    tour.check("search-without-hits")
    tour.close_dialog()
    page.get_by_role("button", name="Actions of Bringing").first.click()
    tour.check("list-menu")
    page.get_by_role("menuitem", name="Rename").click()
    tour.check("rename")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Actions of Bringing").first.click()
    page.get_by_role("menuitem", name="Delete").click()
    tour.check("delete-dialog")
    tour.close_dialog()
    # A conversation of its own: other tests import theirs into the same server.
    page.evaluate(DROP, ["conversations.json", json.dumps(EXPORT).replace('"c1"', '"every-state"')])
    dialog = page.get_by_role("dialog", name="Import conversations")
    expect(dialog.get_by_text("conversations.json")).to_be_visible()
    tour.check("import")
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("message")
    tour.check("import-done")
    assert tour.report() == ""


def test_panels(start_tour: StartTour, page_server: PageServer, demo_conversation: str) -> None:
    tour = start_tour(page_server)
    page = tour.page
    tour.open(demo_conversation, panel="context", reply=15)
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    tour.check("context-of-a-reply")
    page.get_by_text("Left out, and why").click()
    page.get_by_role("combobox", name="with the request of").select_option(index=2)
    expect(page.get_by_role("list", name="What changed")).to_be_visible()
    page.get_by_role("list", name="What changed").scroll_into_view_if_needed()
    tour.check("compare")
    page.get_by_role("button", name="Rebuild and verify").click()
    page.get_by_text("Raw request").click()
    page.get_by_role("group", name="Raw request").scroll_into_view_if_needed()
    tour.check("raw-request")
    for panel in ("context", "references", "window"):
        tour.open(demo_conversation, panel=panel)
        page.wait_for_timeout(500)
        tour.check(f"panel-{panel}")
    tour.open(demo_conversation, panel="references", document="Tide mill.md")
    expect(page.locator("mark, .text").first).to_be_visible()
    tour.check("document")
    tour.open(demo_conversation, panel="references", document="[[Joinery handbook]]")
    expect(page.get_by_text("This link is broken")).to_be_visible()
    tour.check("broken-link")
    tour.open(demo_conversation, panel="settings")
    page.get_by_role("textbox", name="Compact at").fill("0.6")
    expect(page.get_by_role("button", name="Save")).to_be_enabled()
    tour.check("settings-preview")
    page.get_by_role("textbox", name="Compact at").fill("5")
    expect(page.get_by_role("alert")).to_be_visible()
    tour.check("settings-invalid")
    assert tour.report() == ""


def test_the_picture_of_requests(start_tour: StartTour, page_server: PageServer, demo_conversation: str) -> None:
    tour = start_tour(page_server)
    page = tour.page
    tour.open(demo_conversation)
    picture = page.get_by_role("region", name="As the model saw it")
    slider = picture.get_by_role("slider", name="Request")
    expect(slider).to_be_visible()
    larger = picture.get_by_role("button", name="Larger picture")
    while larger.is_enabled():
        larger.click()
    tour.check("picture-large")
    picture.get_by_text("The same as a table").click()
    tour.check("picture-table")
    picture.get_by_text("The same as a table").click()
    slider.focus()
    page.keyboard.press("Control+ArrowLeft")
    expect(picture.get_by_role("button", name="Open the request")).to_be_visible()
    tour.check("picture-selected")
    page.keyboard.press("Shift+ArrowLeft")
    expect(picture.get_by_role("button", name="Compare the two")).to_be_visible()
    tour.check("picture-range")
    page.keyboard.press("ArrowRight")
    picture.get_by_role("button", name="Summary of the compaction").click()
    expect(picture.get_by_role("article")).to_be_visible()
    tour.check("picture-summary")
    slider.focus()
    for _ in range(6):
        page.keyboard.press("+")
    tour.check("picture-zoomed")
    picture.get_by_role("button", name="As the model saw it").click()
    tour.check("picture-closed")
    assert tour.report() == ""


def test_forms_of_tool_calls(start_tour: StartTour, page_server: PageServer, tmp_path: Path) -> None:
    tour = start_tour(page_server)
    tour.open(import_session(page_server, tmp_path, f"calls-{tour.viewport}"))
    tour.check("calls-folded")
    tour.page.locator(".steps > button").click()
    expect(tour.page.get_by_role("link", name="Open the sub-agent’s conversation")).to_be_visible()
    tour.check("calls")
    turn = tour.page.locator(".sub-agent details").first
    turn.locator("summary").first.click()
    expect(turn.locator("details.call").first).to_be_visible()
    turn.scroll_into_view_if_needed()
    tour.check("sub-agent")
    turn.locator("summary").first.click()
    for name, index in dict.fromkeys(
        (name, [each[0] for each in CALLS[:place]].count(name)) for place, (name, *_) in enumerate(CALLS)
    ):
        call = open_call(tour.page, name, index)
        call.scroll_into_view_if_needed()
        tour.check(f"call-{name}-{index}")
        call.locator("summary").first.click()
    assert tour.report() == ""


LONG_TEXT = "\n".join(f"row {number}" for number in range(1, 61))
COLUMNS = range(9)
TABLE = [" | ".join(f"column {number}" for number in COLUMNS), "---|" * 9, " | ".join("cell" for _ in COLUMNS)]
CODE = "```python\ndef area(width: int) -> int:\n    return width * 2\n```"
HTML = "```html\n<style>h1 { color: teal }</style><h1>Mill pond</h1>\n```"
RICH_TEXT = "\n\n".join(["Formula $a^2 + b^2$.", HTML, CODE, "\n".join(TABLE)])


def test_turns(
    start_tour: StartTour, page_server: PageServer, demo_conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tour = start_tour(page_server)
    page = tour.page
    tour.open(demo_conversation)
    tour.check("chat")
    tour.open(demo_conversation, at=4)
    tour.check("archived")
    page.get_by_role("article", name="Compaction 2").get_by_role("button").first.click()
    tour.check("compaction-open")
    page.get_by_role("button", name="Edit summary").click()
    tour.check("compaction-edit")
    tour.open(create_turn_with_failure(page_server))
    tour.check("steps-folded")
    steps = page.get_by_role("article", name="Steps of the turn")
    steps.get_by_role("button").first.click()
    steps.locator("summary").first.click()
    tour.check("steps-open")
    tour.open(create_conversation(page_server, Message.user(LONG_TEXT), Message.assistant(RICH_TEXT)))
    expect(page.locator(".hljs-keyword").first).to_be_visible()
    tour.check("code-table-formula")
    page.get_by_role("button", name="Preview").click()
    expect(page.frame_locator("iframe.preview").get_by_text("Mill pond")).to_be_visible()
    tour.check("preview")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Pin", exact=True).last.click()
    expect(page.locator(".notice")).to_be_visible()
    tour.check("notice")
    page.get_by_role("button", name="Edit", exact=True).first.click()
    tour.check("edit-message")
    tour.open(demo_conversation)
    page.get_by_role("textbox", name="Message").fill("[[ti")
    page.get_by_role("textbox", name="Message").press("End")
    expect(page.get_by_role("listbox")).to_be_visible()
    tour.check("completion")
    page.get_by_role("textbox", name="Message").fill("")
    page_server.model.delay_seconds = 0.5
    try:
        send_message(page, "Tell me about the wheel")
        expect(page.get_by_role("region", name="Reply in progress")).to_contain_text("You asked")
        tour.check("reply-in-progress")
    finally:
        page_server.model.delay_seconds = 0.0
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    send_message(page, "Please order")
    approval = page.get_by_role("group", name="Approve order_timber")
    expect(approval).to_be_visible()
    tour.check("approval")
    approval.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("article").last).to_contain_text(re.compile("The tool says"))
    monkeypatch.setattr(page_server.model, "stream", fail)
    send_message(page, "Which gate first?")
    expect(page.get_by_role("alert")).to_contain_text(FAILURE, timeout=30_000)
    tour.check("error-card")
    page.evaluate("sessionStorage.clear()")
    page.reload()
    expect(page.locator(".unanswered")).to_contain_text("has no answer")
    tour.check("unanswered")
    tour.open(
        create_conversation(page_server, *[Message.user("The sill is wet. " * 300), Message.assistant("Yes.")] * 8)
    )
    expect(page.locator("header .meter")).to_contain_text("compacts it first")
    tour.check("overfull")
    assert tour.report() == ""
