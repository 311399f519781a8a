"""Conversations of agents on the page: the grouped list, context blocks, their own compactions, what was dropped."""

import re
from pathlib import Path

import pytest
from accessibility_faults import VIEWPORTS, run_axe
from page_server import PageServer, serve_page
from playwright.sync_api import Browser, Locator, Page, expect

from infra.agent_sessions import AgentSessions, create_summarized_session
from quire.log import ConversationOrigin
from quire.model import ContextEpoch, Message
from quire.model.entry_bodies import DroppedItem, ListAnchor
from quire.store import SqlStore

pytestmark = pytest.mark.nightly


def find_project(page: Page, project: str, client: str) -> Locator:
    listed = page.get_by_role("navigation", name="Conversations")
    return listed.get_by_role("list", name=f"{project} {client}")


def test_conversations_of_agents_are_listed_by_project_with_sub_agents_under_their_parent(
    page: Page, page_server: PageServer, agent_sessions: AgentSessions
) -> None:
    page.goto(page_server.url(agent_sessions.delegating))
    expect(page.get_by_role("heading", name="tide-mill Claude Code")).to_have_attribute("title", "/home/dev/tide-mill")
    project = find_project(page, "tide-mill", "Claude Code")
    parent = project.get_by_role("listitem").filter(has=page.get_by_role("link", name="Let a sub-agent greet"))
    child = parent.get_by_role("list").get_by_role("link")
    expect(child).to_have_text(re.compile("Greet the crew with echo.*Sub-agent"))
    codex = find_project(page, "almanac", "Codex")
    expect(codex.get_by_role("link")).to_have_text([re.compile("^Greet the crew from the shell"), re.compile("^One")])
    child.click()
    expect(page.get_by_role("article").first).to_contain_text("Parent agent")
    expect(child).to_have_attribute("aria-current", "page")


def test_side_calls_are_folded_and_open_with_the_keyboard(
    page: Page, page_server: PageServer, agent_sessions: AgentSessions
) -> None:
    page.goto(page_server.url(agent_sessions.claude_code))
    project = find_project(page, "tide-mill", "Claude Code")
    side_call = project.get_by_role("link", name="Is this a new topic?")
    expect(project.get_by_text("2 side calls")).to_be_visible()
    expect(side_call).to_be_hidden()
    project.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(side_call).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Is this a new topic?")).to_be_visible()
    page.reload()
    expect(side_call).to_have_attribute("aria-current", "page")
    # The palette lists what a person would look for.
    page.keyboard.press("Control+k")
    results = page.get_by_role("listbox", name="Results")
    expect(results).to_contain_text("Let a sub-agent greet the crew.")
    expect(results).not_to_contain_text("Is this a new topic?")
    page.get_by_role("combobox", name="Search and commands").fill("new topic")
    expect(results.get_by_role("group", name="In messages")).to_be_visible()
    expect(results.get_by_role("group", name="Conversations")).to_have_count(0)


async def create_interrupted_session(store: SqlStore) -> None:
    """A session whose first reply was cut off, so that the agent went on in a branch."""
    await store.create_conversation("cut", origin=ConversationOrigin(client="claude-code", session="cut"))
    await store.append("cut", Message.user("Which port?"), Message.assistant("It is"))
    branch = await store.fork("cut", at=1)
    await store.append("cut", Message.assistant("Port 9000."), branch=branch.number)
    await store.fork("cut", at=1)


def test_the_page_opens_the_branch_used_last(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        server.run(create_interrupted_session(server.server_state.store))
        page.goto(server.url("cut"))
        expect(page.get_by_role("article").last).to_contain_text("Port 9000.")
        page.get_by_role("combobox", name="Branch").select_option("0")
        expect(page.get_by_role("article").last).to_contain_text("It is")
        page.reload()
        expect(page.get_by_role("article").last).to_contain_text("It is")


async def create_long_session(store: SqlStore) -> None:
    origin = ConversationOrigin(client="opencode", session="long", project="/srv/long")
    for number in range(60):
        side = origin.model_copy(update={"purpose": "side"})
        await store.create_conversation(f"side-{number}", title=f"Title {number}", origin=side if number else origin)
        if number == 0:
            # Before the others, so that it is the oldest however long they take.
            await store.append("side-0", Message.user("Which way does the wheel turn?"))


def test_the_next_page_of_the_list_joins_the_session_it_continues(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        server.run(create_long_session(server.server_state.store))
        page.goto(server.url())
        project = find_project(page, "long", "OpenCode")
        expect(project.locator("summary")).to_have_text("59 side calls")
        expect(project.get_by_role("link", name="Title 0", exact=False).first).to_be_visible()
        expect(page.get_by_role("button", name="Show more")).to_have_count(0)


def test_the_users_words_are_what_one_sees(page: Page, page_server: PageServer, agent_sessions: AgentSessions) -> None:
    page.goto(page_server.url(agent_sessions.claude_code, at=1))
    question = page.locator("article[data-seq='1']")
    expect(question.locator(".body")).to_have_text("Greet the crew from the shell.")
    reminder = question.get_by_text("Attribution for git commits")
    expect(reminder).to_be_hidden()
    question.get_by_text("1 block added by Claude Code").click()
    expect(reminder).to_be_visible()
    environment = page.locator("article[data-seq='2']")
    expect(environment.get_by_text("Primary working directory")).to_be_hidden()
    environment.locator("summary").click()
    expect(environment.get_by_text("Primary working directory")).to_be_visible()
    page.goto(page_server.url(agent_sessions.codex, at=1))
    expect(page.locator("article[data-seq='1'] header")).to_contain_text("Codex")
    expect(page.locator("article[data-seq='1']").get_by_text("1 block added by Codex")).to_be_visible()


def test_a_compaction_by_claude_code_leads_to_its_summary_and_to_what_it_replaced(
    page: Page, page_server: PageServer, agent_sessions: AgentSessions
) -> None:
    # The replay takes less than a second, so the times of its branches do not say which one was used last.
    page.goto(page_server.url(agent_sessions.claude_code, branch=0))
    marker = page.get_by_role("article", name="Compaction by Claude Code")
    expect(marker).to_have_count(1)
    expect(marker).to_contain_text("Claude Code replaced 8 earlier messages with its own summary; they are still here")
    following = marker.locator("xpath=following-sibling::*[1]")
    expect(following).to_have_attribute("data-seq", "10")
    marker.get_by_role("button").first.click()
    expect(marker).to_contain_text("The user greeted; echo printed ahoy.")
    marker.get_by_role("button", name="#1").click()
    expect(page.locator("article[data-seq='1']")).to_be_in_viewport()
    page.go_back()
    marker.get_by_role("button", name="branch 1").click()
    expect(page).to_have_url(re.compile("branch=1"))
    prompt = page.get_by_role("article", name="Compaction by Claude Code")
    expect(prompt).to_contain_text("Claude Code had a summary of the messages above written")
    expect(page.get_by_role("article").last).to_contain_text("The user greeted; echo printed ahoy.")
    prompt.get_by_role("button", name="main").click()
    expect(marker).to_contain_text("Claude Code replaced 8 earlier messages")


def test_a_compaction_by_claude_code_is_undone_at_its_only_marker(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        conversation = server.run(create_summarized_session(server.server_state.store))
        page.goto(server.url(conversation, branch=0))
        marker = page.get_by_role("article", name="Compaction by Claude Code")
        expect(marker).to_have_count(1)
        expect(page.get_by_role("article", name="Compaction 1")).to_have_count(0)
        expect(marker).to_contain_text("earlier messages with its own summary; they are still here")
        marker.get_by_role("button").first.click()
        expect(marker).to_contain_text("Gate 3 must be shut before high water")
        expect(marker).not_to_contain_text("<summary>")
        expect(marker.get_by_role("button", name="branch 1")).to_be_visible()
        marker.get_by_role("button", name="Edit summary").click()
        marker.get_by_role("textbox").fill("Only the greeting matters.")
        marker.get_by_role("button", name="Save").click()
        edited = page.get_by_role("article", name="Compaction 2")
        expect(edited).to_contain_text("You edited the summary")
        edited.get_by_role("button").first.click()
        edited.get_by_role("button", name="Undo", exact=True).click()
        # The agent's own summary is active again, and its marker is still open.
        marker.get_by_role("button", name="Undo", exact=True).click()
        expect(page.get_by_text("Your next message to the agent brings")).to_be_visible()
        expect(marker).to_contain_text("undone")
        branch = server.run(server.server_state.store.get_branch(conversation))
        assert branch.state.active_compaction is None


def test_a_dropped_message_of_an_agent_waits_until_it_is_in_effect(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        conversation = server.run(create_summarized_session(server.server_state.store))
        page.goto(server.url(conversation, branch=0))
        message = page.locator("article[data-seq='9']")
        message.scroll_into_view_if_needed()
        message.hover()
        message.get_by_role("button", name="Drop", exact=True).click()
        badge = message.locator("header .badge")
        expect(badge).to_have_text("waiting")
        epoch = ContextEpoch(
            newest=ListAnchor(index=9, digest="x"),
            changes_in_place=True,
            drops=(DroppedItem(message=9, chars=20, tokens=5),),
        )
        server.run(server.server_state.store.append(conversation, epoch))
        page.reload()
        expect(badge).to_have_text("dropped")


def test_a_compaction_by_codex_leads_from_one_branch_to_the_other(
    page: Page, page_server: PageServer, agent_sessions: AgentSessions
) -> None:
    page.goto(page_server.url(agent_sessions.compacted_codex, branch=0))
    marker = page.get_by_role("article", name="Compaction by Codex")
    expect(marker).to_contain_text("The conversation continues on branch 1")
    marker.get_by_role("button", name="branch 1").click()
    expect(page.get_by_role("article").last).to_contain_text("Two it is.")
    expect(marker).to_contain_text("Codex replaced earlier messages with its own summary; they are still here")
    marker.get_by_role("button", name="Codex replaced").click()
    expect(marker).to_contain_text("The user counted to one.")
    expect(marker).not_to_contain_text("Another language model")
    marker.get_by_role("button", name="main").click()
    expect(page.locator("article[data-seq='3']")).to_contain_text("One it is.")


def test_what_had_no_place_in_the_upstreams_format_is_named(
    page: Page, page_server: PageServer, agent_sessions: AgentSessions
) -> None:
    page.goto(page_server.url(agent_sessions.codex, at=5))
    reply = page.locator("article[data-seq='5']")
    expect(reply.get_by_text("reasoning.summary")).to_be_hidden()
    reply.get_by_text(re.compile(r"\d fields dropped")).click()
    expect(reply.get_by_text("reasoning.summary")).to_be_visible()
    page.goto(page_server.url(agent_sessions.codex, panel="context", reply=5))
    forwarding = page.get_by_role("region", name="Forwarding")
    expect(forwarding).to_contain_text("translated it into the upstream's format")
    expect(forwarding.get_by_text("tools[web_search]")).to_be_visible()
    page.goto(page_server.url(agent_sessions.claude_code, branch=0, panel="context", reply=12))
    expect(forwarding).to_contain_text("unchanged, byte for byte")
    expect(forwarding).to_contain_text("starts with 1 message of its own in place of earlier ones")


@pytest.mark.parametrize("viewport", VIEWPORTS)
def test_no_view_of_an_agents_conversation_has_a_fault(
    browser: Browser, page_server: PageServer, agent_sessions: AgentSessions, viewport: str
) -> None:
    context = browser.new_context(reduced_motion="reduce", **VIEWPORTS[viewport])
    page = context.new_page()
    faults: list[str] = []
    for conversation, more in (
        (agent_sessions.claude_code, {}),
        (agent_sessions.compacted_codex, {"branch": 1}),
        (agent_sessions.codex, {"panel": "context", "reply": 5}),
    ):
        page.goto(page_server.url(conversation, **more))
        expect(page.get_by_role("article").last).to_be_visible()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        if viewport == "phone":
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Conversations").click()
        faults += run_axe(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert faults == []
