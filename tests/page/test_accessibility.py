"""Accessibility (axe-core, keyboard, small screens): no view has a fault in light, dark or narrow layout."""

import os
from typing import Any

import pytest
from browser_setup import WEB_DIR
from page_faults import collect_faults
from page_server import PageServer
from playwright.sync_api import Browser, Page, expect
from test_chat_page import send_message

AXE_SCRIPT = WEB_DIR / "node_modules" / "axe-core" / "axe.min.js"

VIEWS = {
    "welcome": {},
    "chat": {"conversation": True},
    "archived": {"conversation": True, "at": 4},
    "context": {"conversation": True, "panel": "context"},
    "context of a reply": {"conversation": True, "panel": "context", "reply": 15},
    "references": {"conversation": True, "panel": "references"},
    "document": {"conversation": True, "panel": "references", "document": "Tide mill.md"},
    "broken link": {"conversation": True, "panel": "references", "document": "[[Joinery handbook]]"},
    "usage": {"conversation": True, "panel": "window"},
    "settings": {"conversation": True, "panel": "settings"},
}
VIEWPORTS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1360, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1360, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 780}, "color_scheme": "light", "has_touch": True, "is_mobile": True},
}


@pytest.fixture(autouse=True)
def require_axe() -> None:
    if not AXE_SCRIPT.is_file():
        message = "AXE-CORE IS NOT INSTALLED (just web): accessibility is not tested here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


def run_axe(page: Page) -> list[str]:
    """Returns axe-core violations with their targets. The script is evaluated past the page's policy."""
    page.evaluate(AXE_SCRIPT.read_text(encoding="utf-8") + "; 0")
    results = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {fault['help']} at {[node['target'] for node in fault['nodes'][:3]]}"
        for fault in results["violations"]
    ]


def view_url(page_server: PageServer, conversation: str, view: dict[str, Any]) -> str:
    more = {name: value for name, value in view.items() if name != "conversation"}
    return page_server.url(conversation if view.get("conversation") else None, **more)


@pytest.mark.parametrize("viewport", VIEWPORTS)
def test_no_view_has_a_fault(browser: Browser, page_server: PageServer, demo_conversation: str, viewport: str) -> None:
    context = browser.new_context(reduced_motion="reduce", **VIEWPORTS[viewport])
    with collect_faults(context) as errors:
        page = context.new_page()
        page.goto(page_server.url())
        faults: dict[str, list[str]] = {}
        for name, view in VIEWS.items():
            page.goto(view_url(page_server, demo_conversation, view))
            if view:
                expect(page.get_by_role("article").last).to_be_visible()
            page.wait_for_load_state("networkidle") if not view else page.wait_for_timeout(500)
            faults[name] = run_axe(page)
    context.close()
    assert {name: found for name, found in faults.items() if found} == {}
    assert errors == []


def test_what_opens_has_no_fault_either(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation))
    page.get_by_role("article", name="Compaction 2").get_by_role("button").first.click()
    assert run_axe(page) == []
    page.get_by_role("button", name="Edit summary").click()
    assert run_axe(page) == []
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("textbox", name="Message").fill("[[ti")
    page.get_by_role("textbox", name="Message").press("End")
    expect(page.get_by_role("listbox")).to_be_visible()
    assert run_axe(page) == []
    page.get_by_role("textbox", name="Message").fill("")
    page.get_by_role("button", name="Delete Bringing").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert run_axe(page) == []
    page.keyboard.press("Escape")
    send_message(page, "Please order")
    expect(page.get_by_role("group", name="Approve order_timber")).to_be_visible()
    assert run_axe(page) == []
    page.get_by_role("button", name="Allow", exact=True).click()
    expect(page.get_by_role("article").last).to_contain_text("Ordered")


def test_landmarks_and_a_title_say_where_one_is(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation, panel="window"))
    expect(page).to_have_title("Bringing the tide mill back to work · Quire")
    for role, name in (("navigation", "Conversations"), ("main", "Conversation"), ("complementary", "Usage")):
        expect(page.get_by_role(role, name=name)).to_be_visible()  # type: ignore[arg-type]


def test_every_control_shows_when_it_has_the_focus(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation, panel="context"))
    expect(page.get_by_role("complementary", name="Context").get_by_role("listitem").first).to_be_visible()
    bare: list[str] = page.evaluate(
        """async () => {
            const hasFocusStyle = (one) => {
                const style = getComputedStyle(one);
                const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
                return outlined || style.boxShadow !== "none";
            };
            const kinds = "button, a[href], input, select, textarea, summary, [tabindex='0']";
            const all = [...document.querySelectorAll(kinds)];
            const bare = [];
            for (const one of all.filter((each) => each.checkVisibility() && !each.disabled)) {
                one.focus({ focusVisible: true });
                let near = one;
                for (let up = 0; up < 2 && !hasFocusStyle(near); up++) near = near.parentElement;
                if (!hasFocusStyle(near)) bare.push(one.outerHTML.slice(0, 120));
            }
            return bare;
        }"""
    )
    assert bare == []


def test_on_a_phone_the_list_and_the_panels_come_over_the_conversation(
    browser: Browser, page_server: PageServer, demo_conversation: str
) -> None:
    context = browser.new_context(reduced_motion="reduce", **VIEWPORTS["phone"])
    page = context.new_page()
    page.goto(page_server.url(demo_conversation))
    listed = page.get_by_role("navigation", name="Conversations")
    expect(listed).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(listed).to_be_visible()
    page.get_by_role("button", name="Close the list").click(position={"x": 380, "y": 400})
    expect(listed).to_be_hidden()
    page.get_by_role("group", name="Panels").get_by_role("button", name="Usage").click()
    expect(page.get_by_role("complementary", name="Usage")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_the_switch_turns_from_the_systems_colours_to_light_and_dark(page: Page, page_server: PageServer) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(page_server.url())
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    switch = page.get_by_role("button", name="Colours")
    switch.click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    switch.click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark != light
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
