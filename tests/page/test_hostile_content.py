"""Hostile text (XSS) has no effect in messages, documents, file names, titles, tool calls and summaries."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_faults import collect_faults
from page_server import PageServer
from playwright.sync_api import Browser, Page, expect
from test_daily_use import create_conversation

from quire.model import Compaction, Message, Span, TextPart, ToolCallPart
from quire.server.page import CONTENT_SECURITY_POLICY
from quire.store import DEFAULT_TENANT

HOSTILE_TEXTS = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'><script>window.hacked = 1</script></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<a href='javascript:window.hacked = 1'>press</a> [press](javascript:window.hacked=1)",
    "<style>body { display: none }</style><div style='position:fixed;inset:0'>over all</div>",
    "<form action='https://example.org'><input name=q><button>press</button></form>",
    "![picture](https://example.org/track.png) <img src='https://example.org/track.png'>",
    "<math><mtext><table><mglyph><style><img src=x onerror='hacked = 1'></style></mglyph></table></mtext></math>",
    "[[<img src=x onerror=window.hacked=1>]] [#1<script>window.hacked=1</script>]",
    "<base href='https://example.org/'><meta http-equiv=refresh content='0;url=https://example.org/'>",
    "```html\n<script>window.hacked = 1</script>\n```",
)
HOSTILE_FILE_NAME = "<img src=x onerror=window.hacked=1>.txt"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Like the common fixture, but ignores the script that a test injects itself."""
    context = browser.new_context(viewport={"width": 1360, "height": 860}, reduced_motion="reduce")
    with collect_faults(context, ignored=("TrustedScript",)) as faults:
        yield context.new_page()
    context.close()
    assert faults == []


@pytest.fixture
def hostile_conversation(page_server: PageServer) -> str:
    """ID of a conversation whose every text is hostile."""

    async def create() -> str:
        store = page_server.server_state.engine_for(DEFAULT_TENANT).store
        conversation = (await store.create_conversation(title=HOSTILE_TEXTS[1])).id
        for text in HOSTILE_TEXTS:
            call = ToolCallPart(id=text, name=HOSTILE_TEXTS[1][:40], arguments=text)
            await store.append(conversation, Message.user(text), Message.assistant(text))
            await store.append(conversation, Message(role="assistant", parts=(TextPart(text=text), call)))
            await store.append(conversation, Message.tool(text, text))
        covers = Span(first=1, last=8)
        await store.append(conversation, Compaction(number=1, covers=covers, summary="\n\n".join(HOSTILE_TEXTS)))
        return conversation

    vault = Path(page_server.server_state.settings.vault or "")
    (vault / "evil.md").write_text("\n\n".join(HOSTILE_TEXTS), encoding="utf-8")
    (vault / f"{HOSTILE_TEXTS[1].replace('/', '')}.md").write_text("A note with a name.", encoding="utf-8")
    return page_server.run(create())


def assert_untouched(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    inside = "article, .panel, nav, .notices"
    for forbidden in ("script", "iframe", "style", "form[action]", "base", "meta", "img[onerror]", "[style*=fixed]"):
        assert page.evaluate(
            "([where, what]) => [...document.querySelectorAll(where)].every(one => !one.querySelector(what))",
            [inside, forbidden],
        ), forbidden
    assert page.evaluate("[...document.querySelectorAll('a')].every(one => !one.href.startsWith('javascript'))")


def test_messages_titles_calls_and_summaries_with_script_do_nothing(
    page: Page, page_server: PageServer, hostile_conversation: str
) -> None:
    page.goto(page_server.url(hostile_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    page.get_by_role("article", name="Compaction 1").get_by_role("button").first.click()
    page.wait_for_timeout(300)
    assert_untouched(page)
    page.get_by_role("group", name="Transcript").focus()
    page.keyboard.press("Home")
    expect(page.locator("article[data-seq='1']")).to_be_in_viewport()
    for call in page.locator("details.call summary").all()[:3]:
        call.click()
    assert_untouched(page)
    expect(page.get_by_text("Picture: picture").first).to_be_visible()


def test_documents_with_script_in_text_and_name_do_nothing(
    page: Page, page_server: PageServer, hostile_conversation: str
) -> None:
    page.goto(page_server.url(hostile_conversation, panel="references", document="evil.md"))
    expect(page.locator(".panel .text")).to_contain_text("press")
    assert_untouched(page)
    page.get_by_role("textbox", name="Message").fill("[[img")
    page.get_by_role("textbox", name="Message").press("End")
    expect(page.get_by_role("listbox", name="Notes").get_by_role("option").first).to_contain_text("onerror")
    assert_untouched(page)


def test_a_file_whose_name_is_script_does_nothing(
    page: Page, page_server: PageServer, hostile_conversation: str
) -> None:
    page.goto(page_server.url(hostile_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    page.locator("input[type=file]").set_input_files(
        files=[{"name": HOSTILE_FILE_NAME, "mimeType": "text/plain", "buffer": b"harmless"}]
    )
    expect(page.get_by_role("list", name="Files to send")).to_contain_text("onerror")
    page.get_by_role("textbox", name="Message").fill("Look at this")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article").filter(has_text="Look at this").first).to_contain_text("onerror")
    assert_untouched(page)


def test_a_stream_with_script_does_nothing(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation))
    page.get_by_role("textbox", name="Message").fill("<img src=x onerror='hacked = 1'> <script>hacked = 1</script>")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article").last).to_contain_text("Look at the context")
    assert_untouched(page)


HOSTILE_PAGE = """<style>@import url(https://example.org/a.css);</style>
<style>h1 { background: url(https://example.org/b.png) }</style>
<meta http-equiv=refresh content='0;url=https://example.org/'><base href='https://example.org/'>
<link rel=stylesheet href='https://example.org/c.css'><h1 onclick='parent.hacked = 1'>Press</h1>
<img src='https://example.org/d.png' onerror='parent.hacked = 1'><iframe src='https://example.org/'></iframe>
<a href='https://example.org/'>Leave</a><form action='https://example.org/'><button>Send</button></form>
<script>parent.hacked = 1; top.location = 'https://example.org/'; fetch('https://example.org/')</script>
"""

WRITE = "(html) => { document.documentElement.innerHTML = html; }"


@pytest.mark.parametrize("is_cleaned", [True, False], ids=["cleaned", "by the policy alone"])
def test_a_preview_runs_no_script_and_loads_nothing(
    browser: Browser, page_server: PageServer, *, is_cleaned: bool
) -> None:
    code = f"```html\n{HOSTILE_PAGE}\n```\n\n```svg\n<svg><text y='20'>A gate</text></svg>\n```"
    conversation = create_conversation(page_server, Message.user("Draw."), Message.assistant(code))
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    sent, refused = set[str](), set[str]()
    page.on("request", lambda request: sent.add(request.url))
    page.on("requestfailed", lambda request: refused.add(request.url) if request.failure == "csp" else None)
    page.goto(page_server.url(conversation))
    page.get_by_role("button", name="Preview").first.click()
    preview = page.frame_locator("iframe.preview")
    expect(preview.get_by_role("heading", name="Press")).to_be_visible()
    frame = next(each for each in page.frames if each.url.endswith("/preview"))
    if not is_cleaned:
        frame.evaluate(WRITE, HOSTILE_PAGE.replace("<meta", "<data"))
    preview.get_by_role("heading", name="Press").click()
    preview.get_by_role("button", name="Send").click()
    assert frame.evaluate("origin") == "null"
    assert frame.evaluate("fetch('/api/conversations').then(() => 'answered', () => 'refused')") == "refused"
    if not is_cleaned:
        frame.evaluate(WRITE, "<meta http-equiv=refresh content='0;url=https://example.org/'>")
    page.wait_for_timeout(500)
    assert {each for each in sent if "example.org" in each} == {each for each in refused if "example.org" in each}
    page.get_by_role("button", name="Preview").first.click()
    expect(page.locator("iframe.preview")).to_have_count(0)
    page.get_by_role("button", name="Preview").last.click()
    expect(page.frame_locator("iframe.preview").get_by_text("A gate")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.url.startswith(f"http://127.0.0.1:{page_server.port}/")
    context.close()


def test_the_policy_refuses_script_that_gets_in_all_the_same(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    answer = page.goto(page_server.url(demo_conversation))
    assert answer is not None
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe-inline" not in CONTENT_SECURITY_POLICY
    assert "unsafe-eval" not in CONTENT_SECURITY_POLICY
    refused = page.evaluate(
        """() => new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
            const script = document.createElement("script");
            try { script.text = "window.hacked = 1"; } catch { return done("trusted-types"); }
            document.body.append(script);
        })"""
    )
    assert refused in ("script-src-elem", "require-trusted-types-for", "trusted-types")
    assert page.evaluate("window.hacked") is None
