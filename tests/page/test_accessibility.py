"""Landmarks, focus, small screens and colours; test_every_state has what axe-core finds."""

from accessibility_faults import VIEWPORTS
from page_server import PageServer
from playwright.sync_api import Browser, Page, expect


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
