"""Imports on the page: files by dialog and by drop, filters by source and project, the timeline."""

import json
from pathlib import Path

import pytest
from accessibility_faults import VIEWPORTS, run_axe
from page_faults import collect_faults, save_picture
from page_server import PageServer, serve_page
from playwright.sync_api import Browser, Locator, Page, expect

from infra.export_samples import make_chatgpt_conversation, make_chatgpt_message
from infra.picture_sessions import import_claude_code_session
from quire.log import ConversationOrigin
from quire.model import Message
from quire.store import DEFAULT_TENANT, SqlStore

pytestmark = pytest.mark.nightly

EXPORT = [
    make_chatgpt_conversation(
        "c1",
        {
            "q": (None, make_chatgpt_message("user", "How is a quire folded?")),
            "a": ("q", make_chatgpt_message("assistant", "In half.")),
        },
        title="Folding a quire",
    ),
    {"conversation_id": "broken"},
]
ORIGINS = (
    ("Sails", "claude-code", "/home/ann/mill"),
    ("Gears", "codex", "/home/ann/mill"),
    ("Almanac", "codex", "/home/ann/almanac"),
    ("A recipe", "chatgpt", None),
)


async def create_conversations(store: SqlStore) -> None:
    for number, (title, client, project) in enumerate(ORIGINS):
        origin = ConversationOrigin(client=client, project=project, session=f"session-{number}")
        await store.create_conversation(f"c{number}", title=title, origin=origin)
        await store.append(f"c{number}", Message.user(f"About {title}"))


def listed(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Conversations")


def titles(page: Page) -> Locator:
    return listed(page).locator("a .title")


def test_conversations_are_filtered_by_source_and_project(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        server.run(create_conversations(server.server_state.store))
        page.goto(server.url())
        source, project = page.get_by_label("Source"), page.get_by_label("Project")
        expect(source.locator("option")).to_have_text(["All sources", "ChatGPT", "Codex", "Claude Code"])
        source.select_option(label="Codex")
        expect(titles(page)).to_have_text(["Almanac", "Gears"])
        project.select_option(label="mill")
        expect(titles(page)).to_have_text(["Gears"])
        source.select_option(label="Claude Code")
        expect(titles(page)).to_have_text(["Sails"])
        source.select_option(label="ChatGPT")
        expect(titles(page)).to_have_text(["A recipe"])
        expect(project).to_have_count(0)
        source.select_option(label="All sources")
        expect(titles(page)).to_have_count(4)


def test_the_timeline_groups_by_day_and_stays_on(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        server.run(create_conversations(server.server_state.store))
        page.goto(server.url())
        toggle = page.get_by_role("button", name="Timeline")
        expect(toggle).to_have_attribute("aria-pressed", "false")
        toggle.click()
        today = listed(page).get_by_role("list", name="Today")
        expect(today.get_by_role("link").first).to_contain_text("ChatGPT")
        expect(today.get_by_role("link", name="Gears")).to_contain_text("Codex, mill")
        page.reload()
        expect(page.get_by_role("button", name="Timeline")).to_have_attribute("aria-pressed", "true")
        expect(listed(page).get_by_role("heading", name="Today")).to_be_visible()


def test_a_file_is_imported_by_the_dialog(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(EXPORT))
    with serve_page(tmp_path / "server") as server:
        page.goto(server.url())
        listed(page).get_by_role("button", name="Import").click()
        dialog = page.get_by_role("dialog", name="Import conversations")
        start = dialog.get_by_role("button", name="Import", exact=True)
        expect(start).to_be_disabled()
        dialog.locator("input[type=file]").set_input_files(path)
        expect(dialog.get_by_label("Written by")).to_have_value("chatgpt")
        start.click()
        expect(dialog.get_by_role("status")).to_have_text("2 new messages in 1 conversation")
        dialog.get_by_text("1 item could not be read").click()
        expect(dialog.get_by_role("listitem").last).to_contain_text("it has no conversation_id or no mapping")
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_have_count(0)
        expect(page.get_by_label("Source").locator("option")).to_have_text(["All sources", "ChatGPT"])
        listed(page).get_by_role("link", name="Folding a quire").click()
        expect(page.get_by_role("article")).to_have_count(2)


DROP = """([name, text]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([text], name));
    const nav = document.querySelector("nav.sidebar");
    for (const type of ["dragover", "drop"])
        nav.dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: transfer }));
}"""


def test_files_dropped_on_the_list_are_imported_and_not_attached(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    page.evaluate(DROP, ["My export (1).json", json.dumps(EXPORT)])
    dialog = page.get_by_role("dialog", name="Import conversations")
    expect(dialog.get_by_text("My export (1).json")).to_be_visible()
    expect(page.get_by_label("Files to send")).to_have_count(0)
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("2 new messages in 1 conversation")
    dialog.get_by_role("button", name="Close").click()
    page.evaluate(DROP, ["conversations.json", json.dumps(EXPORT)])
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(dialog.get_by_role("status")).to_have_text("0 new messages, 2 messages imported before")


def test_a_file_of_another_kind_waits_for_the_choice_of_a_program(page: Page, page_server: PageServer) -> None:
    page.goto(page_server.url())
    page.evaluate(DROP, ["notes.txt", "plain text"])
    dialog = page.get_by_role("dialog", name="Import conversations")
    expect(dialog.get_by_role("button", name="Import", exact=True)).to_be_disabled()
    dialog.get_by_label("Written by").select_option("claude")
    dialog.get_by_role("button", name="Import", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("0 new messages")


@pytest.mark.parametrize("viewport", VIEWPORTS)
def test_no_view_has_a_fault(browser: Browser, tmp_path: Path, viewport: str) -> None:
    context = browser.new_context(reduced_motion="reduce", **VIEWPORTS[viewport])
    faults: dict[str, list[str]] = {}
    with serve_page(tmp_path) as server, collect_faults(context) as errors:
        server.run(create_conversations(server.server_state.store))
        page = context.new_page()
        page.goto(server.url())
        if "phone" in viewport:
            page.get_by_role("button", name="Conversations").click()
        page.get_by_role("button", name="Timeline").click()
        expect(listed(page).get_by_role("heading", name="Today")).to_be_visible()
        faults["timeline"] = run_axe(page)
        save_picture(page, f"timeline-{viewport}")
        page.get_by_role("button", name="Timeline").click()
        save_picture(page, f"projects-{viewport}")
        faults["projects"] = run_axe(page)
        page.evaluate(DROP, ["conversations.json", json.dumps(EXPORT)])
        dialog = page.get_by_role("dialog", name="Import conversations")
        dialog.get_by_role("button", name="Import", exact=True).click()
        expect(dialog.get_by_text("1 item could not be read")).to_be_visible()
        dialog.get_by_text("1 item could not be read").click()
        faults["import"] = run_axe(page)
        save_picture(page, f"import-{viewport}")
    context.close()
    assert {name: found for name, found in faults.items() if found} == {}
    assert errors == []


def test_what_the_model_saw_of_an_imported_reply_is_what_its_transcript_says(
    page: Page, page_server: PageServer, tmp_path: Path
) -> None:
    engine = page_server.server_state.engine_for(DEFAULT_TENANT)
    conversation = page_server.run(import_claude_code_session(engine, tmp_path, messages=24, compact_at=(12,)))
    entries = page_server.run(engine.store.read_range(conversation, kinds=["message"]))
    reply = [entry for entry in entries if entry.role == "assistant"][-1]
    page.goto(page_server.url(conversation, panel="context", reply=reply.seq))
    panel = page.get_by_role("complementary", name="Context")
    expect(panel).to_contain_text("This reply was imported. Quire did not see its request")
    usage = reply.metadata.usage
    assert usage is not None
    expect(panel.get_by_role("row", name="Output tokens")).to_contain_text(f"{usage.output_tokens:,}")
    expect(page.locator(".notice")).to_have_count(0)
    page.goto(page_server.url(conversation, panel="window"))
    expect(page.get_by_role("complementary", name="Usage")).not_to_contain_text("No requests yet")
    compaction = next(each.seq for each in page_server.run(engine.store.read_range(conversation, kinds=["compaction"])))
    page.goto(page_server.url(conversation, at=compaction))
    marker = page.locator(f'[data-seq="{compaction}"]')
    marker.get_by_role("button").first.click()
    expect(marker).to_contain_text("Written by Claude Code.")
    expect(marker).not_to_contain_text("Extracted without a model")
