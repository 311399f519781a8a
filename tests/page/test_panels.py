"""Panels of the page: archived messages, compactions, usage, context of a turn, references, settings."""

import re

import pytest
from page_server import PageServer
from playwright.sync_api import Locator, Page, expect
from test_chat_page import send_message

from quire.store import DEFAULT_TENANT

pytestmark = pytest.mark.nightly


def open_panel(page: Page, name: str) -> Locator:
    page.get_by_role("group", name="Panels").get_by_role("button", name=name).click()
    return page.get_by_role("complementary", name=name)


def test_archived_messages_stay_in_sight_and_say_so(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation, at=4))
    archived = page.locator("article[data-seq='4']")
    expect(archived).to_contain_text("archived")
    expect(archived).to_contain_text("sea gate")
    expect(page.locator("article[data-seq='3']")).to_contain_text("pinned")
    expect(page.locator("article[data-seq='3']")).not_to_contain_text("archived")


def test_a_marker_opens_to_the_summary_whose_citations_lead_to_their_messages(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    marker = page.get_by_role("article", name="Compaction 2")
    expect(marker.get_by_role("button").first).to_have_text(re.compile(r"\d+ messages archived, [\d,]+ tokens freed"))
    marker.get_by_role("button").first.click()
    expect(marker).to_contain_text("Bring the sea gate")
    marker.get_by_role("button", name="#7", exact=True).first.click()
    # #7 is the result of a tool, which is displayed with its call.
    expect(page).to_have_url(re.compile("at=7"))
    expect(page.locator("article[data-seq='6']")).to_be_in_viewport()
    page.go_back()
    page.get_by_role("button", name="Newest").click()
    expect(marker).to_be_in_viewport()


def test_a_summary_is_edited_and_the_edit_undone_and_redone(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    page.get_by_role("article", name="Compaction 2").get_by_role("button").first.click()
    page.get_by_role("button", name="Edit summary").click()
    page.get_by_role("textbox", name="Summary").fill("The gate first. Ask Rosa for the keys.")
    page.get_by_role("button", name="Save summary").click()
    edited = page.get_by_role("article", name="Compaction 3")
    expect(edited).to_contain_text("You edited the summary")
    expect(edited).to_contain_text("current summary")
    expect(page.get_by_role("article", name="Compaction 2")).to_contain_text("replaced")
    edited.get_by_role("button").first.click()
    edited.get_by_role("button", name="Undo").click()
    expect(edited).to_contain_text("undone")
    expect(page.get_by_role("article", name="Compaction 2")).to_contain_text("current summary")
    expect(page.get_by_role("article").last).to_contain_text("Compaction 3 undone")
    edited.get_by_role("button", name="Redo").click()
    expect(page.get_by_role("article", name="Compaction 4")).to_contain_text("current summary")
    expect(page.get_by_role("button", name="Redo")).to_have_count(0)


def test_undoing_every_compaction_leaves_nothing_archived(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    for number in (2, 1):
        marker = page.get_by_role("article", name=f"Compaction {number}")
        marker.scroll_into_view_if_needed()
        marker.get_by_role("button").first.click()
        marker.get_by_role("button", name="Undo").click()
        expect(marker).to_contain_text("undone")
    expect(page.locator("article.archived")).to_have_count(0)


def test_the_usage_panel_lists_slots_the_reserve_and_the_threshold(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    usage = open_panel(page, "Usage")
    for slot in ("Instructions", "Tools", "Summary", "Messages", "Reserved"):
        expect(usage.get_by_role("rowheader", name=slot, exact=True)).to_be_visible()
    expect(usage.get_by_role("row", name=re.compile("Compaction at"))).to_contain_text("3,400")
    bar = usage.get_by_role("img", name=re.compile("^Context window"))
    expect(bar.locator(".messages")).to_have_attribute("title", re.compile(r"Messages: [\d,]+ tokens"))
    chart = usage.get_by_role("img", name=re.compile("requests"))
    expect(chart.locator(".bar")).to_have_count(11)
    expect(chart.locator(".mark")).to_have_count(1)
    chart.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="Context")).to_contain_text("Reply #27")


def test_compacting_by_hand_says_first_what_it_would_do(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    for question in ("One", "Two", "Three", "Four"):
        send_message(page, question)
        expect(page.get_by_role("article").last).to_contain_text(f"You asked: {question}")
    usage = open_panel(page, "Usage")
    expect(usage).to_contain_text("It would archive everything up to")
    usage.get_by_role("textbox", name="What the summary must keep").fill("the work days")
    usage.get_by_role("button", name="Compact now").click()
    expect(page.get_by_role("article", name="Compaction 3")).to_contain_text("current summary")


def test_the_context_of_a_turn_says_what_was_used_and_how_it_came_in(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation, at=15))
    reply = page.locator("article[data-seq='15']")
    reply.get_by_role("button", name="What the model saw").click()
    context = page.get_by_role("complementary", name="Context")
    rules = context.get_by_role("region", name="Rules")
    expect(rules.get_by_role("listitem").filter(has_text="plain")).to_contain_text("Always")
    expect(rules.get_by_role("listitem").filter(has_text="units")).to_contain_text("Manual")
    expect(rules.get_by_role("listitem").filter(has_text="water-safety")).to_contain_text(
        re.compile(r"Matched 0\.\d\d")
    )
    for section in ("References", "Tools", "Memory", "Messages"):
        expect(context.get_by_role("region", name=section)).to_be_visible()
    context.get_by_text("Left out, and why").click()
    expect(context).to_contain_text("Not relevant enough")
    expect(context).to_contain_text(re.compile(r"Its score for this question is 0\.[012]\d; it needs 0\.35\."))


def test_messages_come_first_and_sections_fold(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation, panel="context", reply=15))
    context = page.get_by_role("complementary", name="Context")
    expect(context.get_by_role("region").first).to_have_accessible_name("Messages")
    expect(context.get_by_role("region", name="Tools").get_by_role("listitem").first).to_be_hidden()
    expect(context.get_by_role("img", name="What the model saw")).to_be_visible()
    rules = context.get_by_role("region", name="Rules")
    expect(rules.get_by_role("listitem").first).to_be_visible()
    rules.get_by_role("heading", name="Rules").click()
    expect(rules.get_by_role("listitem").first).to_be_hidden()
    expect(rules).to_contain_text("tokens")
    rules.get_by_role("heading", name="Rules").click()
    expect(rules.get_by_role("listitem").first).to_be_visible()


def test_a_message_with_documents_counts_as_written_and_as_sent(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    send_message(page, "Compare the notes in [[Timber]].")
    expect(page.get_by_role("article").last).to_contain_text("You asked")
    question = page.get_by_role("article").filter(has_text="Compare the notes in").first
    expect(question).to_contain_text(re.compile(r"[\d.k]+ tokens \(\d+ as written\)"))
    expect(page.locator("header .meter")).to_contain_text(re.compile(r"[\d,]+ in documents"))
    usage = open_panel(page, "Usage")
    expect(usage.get_by_role("row", name="In documents of messages")).to_be_visible()


def test_a_request_is_rebuilt_byte_for_byte_and_compared(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation, panel="context", reply=27))
    context = page.get_by_role("complementary", name="Context")
    context.get_by_role("button", name="Rebuild and verify").click()
    expect(context).to_contain_text("Rebuilt from its record")
    context.get_by_text("Raw request").click()
    expect(context.get_by_role("group", name="Raw request")).to_contain_text('"role": "user"')
    context.get_by_role("combobox").select_option("4")
    changes = context.get_by_role("list", name="What changed")
    expect(changes).to_contain_text("units")
    expect(changes).to_contain_text(re.compile(r"units\s*\+\d+ tokens\s*out, not added → in, manual"))
    partial = changes.get_by_role("listitem").filter(has_text="recalled").first
    expect(partial).not_to_contain_text(" tokens")


def test_a_comparison_has_the_first_words_of_messages_that_only_the_other_request_had(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation, panel="context", reply=15))
    context = page.get_by_role("complementary", name="Context")
    context.get_by_role("combobox").select_option("25")
    newest = context.get_by_role("list", name="What changed").get_by_role("listitem").filter(has_text="#24")
    expect(newest).to_contain_text("User: Who said that about six weeks again?")


def test_items_are_added_removed_and_messages_pinned_from_the_context(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation, panel="context"))
    context = page.get_by_role("complementary", name="Context")
    context.get_by_role("button", name="Remove units").click()
    expect(context.get_by_role("button", name="Add units")).to_be_visible()
    expect(page.get_by_role("article").last).to_contain_text("Removed the rule “units”")
    context.get_by_role("button", name="Add units").click()
    expect(context.get_by_role("button", name="Remove units")).to_be_visible()
    context.get_by_role("button", name="Pin #27").click()
    expect(context.get_by_role("button", name="Unpin #27")).to_be_visible()
    expect(page.locator("article[data-seq='27']")).to_contain_text("pinned")


def test_references_are_listed_with_broken_links_and_lead_both_ways(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    references = open_panel(page, "References")
    expect(references).to_contain_text("1 broken link")
    expect(references.get_by_role("listitem").filter(has_text="Joinery handbook")).to_contain_text("broken")
    expect(references.get_by_role("listitem").filter(has_text="Tides.md")).to_contain_text("Springs here range")
    expect(references.get_by_role("img", name=re.compile("6 documents"))).to_be_visible()
    references.get_by_role("button", name=re.compile("^Tide mill.md")).click()
    # The link names a section, which is highlighted.
    expect(references.locator("mark")).to_contain_text("The gate is elm")
    expect(references.locator("mark")).not_to_contain_text("Twelve feet")
    references.get_by_role("button", name="#3", exact=True).click()
    expect(page.locator("article[data-seq='3']")).to_be_focused()


def test_the_graph_draws_each_citation_and_a_click_marks_the_source_where_it_is_cited(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation, panel="references"))
    references = page.get_by_role("complementary", name="References")
    graph = references.get_by_role("img", name=re.compile("6 documents"))
    expect(graph).to_be_visible()
    citations = references.get_by_role("listitem").get_by_role("button", name=re.compile("^Go to message"))
    expect(graph.locator("path.edge")).to_have_count(citations.count())
    node = graph.locator("g", has=page.locator("title", has_text="Tide mill.md"))
    node.locator("circle").hover()
    expect(graph.locator("path.highlighted").first).to_be_visible()
    assert graph.locator("path.highlighted").count() < graph.locator("path.edge").count()
    node.locator("circle").click()
    expect(references.locator("mark")).to_contain_text("The gate is elm")
    expect(references.locator("mark")).to_be_in_viewport()
    references.get_by_role("button", name="All documents").click()
    graph.locator("g", has=page.locator("title", has_text="#3")).first.locator("rect").click()
    expect(page.locator("article[data-seq='3']")).to_be_focused()


def test_settings_show_what_they_would_do_before_they_are_saved(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    settings = open_panel(page, "Settings")
    limit = settings.get_by_label("Context limit")
    settings.get_by_label("Compact at").fill("0.25")
    preview = settings.get_by_role("region", name="What this would do")
    expect(preview).to_contain_text("would be compacted first")
    preview.get_by_role("button", name="Discard").click()
    expect(preview).to_have_count(0)
    expect(settings.get_by_label("Compact at")).to_have_value("0.85")
    limit.fill("3900")
    expect(preview).to_contain_text("The next request fits")
    preview.get_by_role("button", name="Save").click()
    expect(page.get_by_role("banner").or_(page.locator("header.top"))).to_contain_text("of 3,900 tokens")
    page_server.run(page_server.server_state.change_settings({"context_limit": 4_000}))


def test_requests_that_are_still_loading_are_not_said_to_be_none(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    # Never answered.
    page.route(re.compile(r"/requests\?"), lambda route: None)
    page.goto(page_server.url(demo_conversation, panel="context", reply=15))
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    expect(page.get_by_text("There is no other request to compare with.")).to_have_count(0)


def test_the_conversation_can_be_read_with_the_keyboard_alone(
    page: Page, page_server: PageServer, demo_conversation: str
) -> None:
    page.goto(page_server.url(demo_conversation))
    expect(page.get_by_role("article").last).to_be_visible()
    page.get_by_role("group", name="Transcript").focus()
    page.keyboard.press("Alt+ArrowUp")
    last = page.evaluate("document.activeElement.dataset.seq")
    page.keyboard.press("Alt+ArrowUp")
    assert int(page.evaluate("document.activeElement.dataset.seq")) < int(last)
    page.get_by_role("group", name="Transcript").focus()
    page.keyboard.press("Home")
    expect(page.get_by_role("article").first).to_contain_text("What do we know about")
    expect(page.get_by_role("article").first).to_be_in_viewport()
    page.keyboard.press("Alt+3")
    expect(page.get_by_role("complementary", name="Usage")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_have_count(0)


def test_a_message_is_purged_only_after_a_warning(page: Page, page_server: PageServer, demo_conversation: str) -> None:
    page.goto(page_server.url(demo_conversation))
    message = page.locator("article[data-seq='27']")
    message.hover()
    message.get_by_role("button", name="More for #27").click()
    page.get_by_role("menuitem", name="Erase this message permanently").click()
    page.get_by_role("dialog").get_by_role("button", name="Erase permanently").click()
    expect(message).to_contain_text("[purged]")
    entry = page_server.run(page_server.server_state.engine_for(DEFAULT_TENANT).store.get_entry(demo_conversation, 27))
    assert entry.purged_at is not None
