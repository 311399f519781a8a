"""Reading and keeping: code with colours, formulas, export and import, undo of what can be undone, approvals."""

import re
from pathlib import Path

import pytest
from page_server import PageServer
from playwright.sync_api import Page, expect
from test_chat_page import send_message
from test_daily_use import create_conversation

from quire.model import Message, ToolCallPart

pytestmark = pytest.mark.nightly

FORMULAS = """Euler: $e^{i\\pi} + 1 = 0$, and it costs $5 and $6.

$$
\\sum_{i=1}^n i = \\frac{n(n+1)}{2}
$$

Then \\(a^2\\), and a bad one: $\\frac{1}$.

```python
def area(width: int) -> int:
    return width * 2  # twice
```

```unknown
nothing here
```
"""
HOSTILE_FORMULAS = (
    "<math><mtext><img src=x onerror=alert(1)></mtext></math> "
    "$\\href{javascript:alert(1)}{x}$ $\\style{color:red}{y}$ $\\color{red} z$"
)


def test_code_has_colours_and_formulas_are_typeset(page: Page, page_server: PageServer) -> None:
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    plain = create_conversation(page_server, Message.user("How?"), Message.assistant("With `care`, for $5 and $6."))
    page.goto(page_server.url(plain))
    expect(page.get_by_role("article").last).to_contain_text("for $5 and $6.")
    assert not any(re.search("maths|highlighting", url) for url in loaded)
    conversation = create_conversation(page_server, Message.user("How?"), Message.assistant(FORMULAS))
    page.goto(page_server.url(conversation))
    answer = page.get_by_role("article").last
    expect(answer.locator("math")).to_have_count(3)
    expect(answer.locator("math[display=block] mfrac")).to_have_count(1)
    expect(answer).to_contain_text("it costs $5 and $6.")
    expect(answer.locator("code.math")).to_have_text("\\frac{1}")
    expect(answer.locator(".hljs-keyword").first).to_have_text("def")
    assert answer.locator("pre").first.inner_text() == ("def area(width: int) -> int:\n    return width * 2  # twice\n")
    assert any("maths" in url for url in loaded)


def test_a_hostile_formula_is_harmless(page: Page, page_server: PageServer) -> None:
    conversation = create_conversation(page_server, Message.user("How?"), Message.assistant(HOSTILE_FORMULAS))
    page.goto(page_server.url(conversation))
    answer = page.get_by_role("article").last
    expect(answer).to_contain_text("onerror=alert(1)")
    expect(answer.locator("math").last).to_contain_text("z")
    assert answer.locator("[href^=javascript], [style], img").count() == 0


def test_a_conversation_is_exported_and_imported_from_its_menu(
    page: Page, page_server: PageServer, demo_conversation: str, tmp_path: Path
) -> None:
    page.goto(page_server.url(demo_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    with page.expect_download() as markdown:
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Export as Markdown").click()
    assert markdown.value.suggested_filename.endswith(".md")
    markdown.value.save_as(tmp_path / "transcript.md")
    assert "lower hinge" in (tmp_path / "transcript.md").read_text()
    with page.expect_download() as log:
        page.get_by_role("button", name="More actions").focus()
        for key in ("Enter", "ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
    log.value.save_as(tmp_path / log.value.suggested_filename)
    assert log.value.suggested_filename.endswith(".jsonl")

    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Import conversations").click()
    dialog = page.get_by_role("dialog", name="Import conversations")
    dialog.locator("input[type=file]").set_input_files(tmp_path / log.value.suggested_filename)
    expect(dialog.get_by_label("Written by")).to_have_value("quire")
    before = page_server.run(page_server.server_state.store.list_conversations(limit=500))
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(dialog.get_by_role("status")).to_have_text("Imported", timeout=20_000)
    after = page_server.run(page_server.server_state.store.list_conversations(limit=500))
    assert len(after) == len(before) + 1


def test_the_output_of_a_tool_is_no_heading_of_an_export(page: Page, page_server: PageServer, tmp_path: Path) -> None:
    call = ToolCallPart(id="c1", name="read_file", arguments='{"path": "seven.md"}')
    messages = (Message.user("Read it."), Message(role="assistant", parts=(call,)), Message.tool("c1", "# File 7\nIt."))
    page.goto(page_server.url(create_conversation(page_server, *messages, Message.assistant("Read."))))
    expect(page.get_by_role("article").last).to_contain_text("Read.")
    with page.expect_download() as download:
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Export as Markdown").click()
    download.value.save_as(tmp_path / "transcript.md")
    assert "\n```\n# File 7\nIt.\n```\n" in (tmp_path / "transcript.md").read_text()


def test_an_action_that_can_be_undone_has_undo_in_its_notice(page: Page, page_server: PageServer) -> None:
    text = "The sluice of the mill pond opens at half tide. " * 6
    pairs = [message for _ in range(6) for message in (Message.user(text), Message.assistant(text))]
    page.goto(page_server.url(create_conversation(page_server, *pairs), panel="window"))
    page.get_by_role("button", name="Compact now").click()
    notice = page.locator(".notice")
    expect(notice).to_contain_text("Compacted", timeout=20_000)
    markers = page.get_by_role("article", name=re.compile("^Compaction"))
    expect(markers.last).to_contain_text("current summary")
    notice.get_by_role("button", name="Undo").click()
    expect(page.locator(".notice").last).to_contain_text("Compaction undone")

    question = page.locator("article.user").last
    question.hover()
    question.get_by_role("button", name="Pin", exact=True).click()
    expect(question.locator(".badge", has_text="pinned")).to_be_visible()
    page.locator(".notice", has_text="Pinned").get_by_role("button", name="Undo").click()
    expect(question.locator(".badge", has_text="pinned")).to_have_count(0)


def test_an_approval_names_each_argument(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation))
    send_message(page, "Please order it")
    approval = page.get_by_role("group", name="Approve order_timber")
    expect(approval.get_by_role("term")).to_have_text(["wood", "length"])
    expect(approval.get_by_role("definition")).to_have_text(["elm", "9"])
    expect(page.locator(".call .badge", has_text="running")).to_have_count(0)
    approval.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("article").last).to_contain_text("The tool says")


def test_the_context_names_the_author_and_first_words_of_each_message(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    send_message(page, "Which gate first?")
    expect(page.get_by_role("article").last).to_contain_text("You asked: Which gate first?")
    reply = page.get_by_role("article").last.get_attribute("data-seq")
    page.goto(page_server.url(demo_conversation, panel="context", reply=reply))
    rows = page.get_by_role("complementary", name="Context").locator("section li", has_text="#")
    expect(rows.filter(has_text="User: Which gate first?")).to_have_count(1)
    page.get_by_role("complementary").get_by_role("combobox").select_option(index=1)
    expect(page.get_by_role("complementary")).to_contain_text(re.compile(r"[+−]\d+ tokens"))
