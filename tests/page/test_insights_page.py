"""Insights on the page: totals and bars, and a link from a costly turn to its manifest."""

from pathlib import Path

import pytest
from accessibility_faults import VIEWPORTS, run_axe
from page_faults import collect_faults, save_picture
from page_server import PageServer, serve_page
from playwright.sync_api import Browser, Locator, Page, expect

from quire.log import ConversationOrigin
from quire.model import DocumentReference, Draft, Message, Usage
from quire.model.entry_metadata import TurnTotals
from quire.model.ids import now
from quire.store import SqlStore
from quire.usage.contribution import DAY_MICROSECONDS

pytestmark = pytest.mark.nightly

MODELS = ("gpt-4o", "claude-sonnet-4-5", "qwen3")
TURNS = 24


async def create_turns(store: SqlStore) -> None:
    for client, title in (("codex", "Sluice gates"), ("claude-code", "Tide tables")):
        origin = ConversationOrigin(client=client, project=f"/home/ann/{title.split()[0].lower()}")
        await store.create_conversation(client, title=title, origin=origin)
        for number in range(TURNS):
            usage = Usage(
                model=MODELS[number % 3],
                input_tokens=9_000 + 700 * number,
                output_tokens=300,
                cache_read_tokens=400 * number,
            )
            turn = TurnTotals(steps=1, usage=usage, cost_usd=0.02 * (number + 1))
            at = now() - (number % 12) * DAY_MICROSECONDS
            documents = ("notes/Tide mill.md", "notes/Weirs.md")[: 1 + (number % 5 == 0)]
            references = tuple(DocumentReference(link=each, path=each) for each in documents)
            question = Draft(body=Message.user(f"Question {number}?"), references=references, created_at=at)
            await store.append(
                client,
                question,
                Draft(body=Message.assistant("Yes."), usage=usage, turn=turn, cost_usd=turn.cost_usd, created_at=at),
            )


def open_insights(page: Page, server: PageServer) -> Locator:
    page.goto(server.url())
    button = page.get_by_role("button", name="Insights")
    if not button.is_visible():
        page.get_by_role("button", name="Conversations").click()
    button.click()
    dialog = page.get_by_role("dialog", name="Insights")
    expect(dialog.get_by_role("table", name="By model")).to_be_visible()
    return dialog


def test_the_insights_lead_to_the_manifest_of_a_costly_turn(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        server.run(create_turns(server.server_state.store))
        dialog = open_insights(page, server)
        rows = dialog.get_by_role("table", name="By source").get_by_role("row")
        expect(rows).to_contain_text(["Name", "claude-code", "codex"])
        expect(dialog.get_by_role("table", name="Documents used together")).to_contain_text("notes/Weirs.md")
        expect(
            dialog.get_by_text("Pin it, or make it a reference of the agent: 100 % of the turns name it.")
        ).to_be_visible()
        dialog.get_by_label("Period").select_option("7")
        expect(dialog.get_by_role("table", name="By day").get_by_role("row")).to_have_count(8)
        dialog.get_by_role("link", name="Tide tables #").first.click()
        expect(dialog).to_have_count(0)
        expect(page.get_by_role("heading", name="Tide tables")).to_be_visible()
        assert "panel=context&reply=" in page.url


async def create_days(store: SqlStore) -> None:
    """Four weeks with one expensive day."""
    await store.create_conversation("days", title="Sluice gates")
    for day in range(28):
        cost = 9.0 if day == 14 else 0.5
        usage = Usage(model="gpt-4o", input_tokens=9_000, output_tokens=300)
        turn = TurnTotals(steps=1, usage=usage, cost_usd=cost)
        at = now() - day * DAY_MICROSECONDS
        await store.append(
            "days",
            Draft(body=Message.user(f"Day {day}?"), created_at=at),
            Draft(body=Message.assistant("Yes."), usage=usage, turn=turn, cost_usd=cost, created_at=at),
        )


def test_the_first_screen_has_findings_with_their_commands(page: Page, tmp_path: Path) -> None:
    with serve_page(tmp_path) as server:
        server.run(create_days(server.server_state.store))
        page.goto(server.url())
        findings = page.get_by_role("region", name="Findings in your sessions")
        expect(findings.get_by_role("listitem")).to_contain_text(["cost $9.00, where the usual day costs $0.50."])
        # The commands in the sentence of advice, and the one that shows the evidence.
        commands = ["quire config set daily_budget 10", "daily_budget_stops", "quire scan --usage --since "]
        expect(findings.locator("code")).to_contain_text(commands)


@pytest.mark.parametrize("viewport", VIEWPORTS)
def test_the_insights_have_no_fault(browser: Browser, tmp_path: Path, viewport: str) -> None:
    context = browser.new_context(reduced_motion="reduce", **VIEWPORTS[viewport])
    with serve_page(tmp_path) as server, collect_faults(context) as errors:
        server.run(create_turns(server.server_state.store))
        page = context.new_page()
        open_insights(page, server)
        assert run_axe(page) == []
        width = page.evaluate(
            "() => document.querySelector('dialog').scrollWidth - document.querySelector('dialog').clientWidth"
        )
        assert width == 0
        save_picture(page, f"insights-{viewport}")
    context.close()
    assert errors == []
