"""`quire scan --usage`: the overview, one dimension, JSON as the API returns it, and the recount."""

import asyncio
import time
from datetime import UTC, datetime

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json, validate_document
from test_json_matches_api import get_json

from quire.db.store_part import write
from quire.log import ConversationOrigin
from quire.model import Draft, Message, ToolCallPart, TurnTotals, Usage
from quire.model.entry_metadata import DocumentReference
from quire.schemas.stats import StatsSchema
from quire.store import SqlStore

TURNS = 24


def read_usage() -> str:
    return invoke_cli("scan", "--usage").stdout


@pytest.fixture
def usage(home: CliHome) -> None:
    """Turns of an agent, in which most questions name one document and one reply calls a tool."""

    async def append() -> None:
        async with SqlStore.open(f"sqlite:///{home.database}") as store:
            origin = ConversationOrigin(client="codex", project="/home/ada/boat")
            await store.create_conversation("boat", title="Boat", origin=origin)
            at = time.time_ns() // 1_000
            for number in range(TURNS):
                usage = Usage(model="gpt-4o", input_tokens=1_000, output_tokens=50, cache_read_tokens=500)
                cost = 0.01 * (number + 1)
                references = (DocumentReference(link="plan.md", path="plan.md"),)
                await store.append(
                    "boat",
                    Draft(body=Message.user(f"Question {number}?"), references=references, created_at=at),
                    Draft(body=Message.assistant(f"Answer {number}."), usage=usage, cost_usd=cost, created_at=at),
                )
            call = Message(role="assistant", parts=(ToolCallPart(id="1", name="read_chart"),))
            await store.append("boat", Draft(body=call, created_at=at))

    asyncio.run(append())


def test_the_overview_is_one_screen_with_bars(usage: None):
    outcome = invoke_cli("scan", "--usage")
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.stdout.splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 100
    assert "24 in 25 requests" in outcome.stdout
    assert "24,000, 50% from cache" in outcome.stdout
    assert "at least $3.00, and 1 call without a known price or output, 0 tokens" in outcome.stdout
    assert "█" in outcome.stdout
    assert "boat --reply 49" in outcome.stdout
    assert "document plan.md: Pin it, or make it a reference of the agent: 100% of the turns name it." in outcome.stdout


def test_no_number_is_cut_on_a_terminal_of_80_columns(usage: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = read_usage().splitlines()
    tables = [line for line in lines if line.startswith(("day ", "model ", "project ", "source ", "slot ", "tool "))]
    assert tables
    assert [line for line in tables if "…" in line] == []
    [row] = [line for line in lines if line.startswith("/home/ada/boat")]
    assert row.split()[-5:] == ["$3.00", "24,000", "50%", "1,200", "24"]
    assert max(map(len, lines)) <= 80


def test_an_unknown_cost_is_not_zero(home: CliHome):
    async def append(client: str, *, cost: float | None) -> None:
        async with SqlStore.open(f"sqlite:///{home.database}") as store:
            await store.create_conversation(client, origin=ConversationOrigin(client=client))
            at, usage = time.time_ns() // 1_000, Usage(input_tokens=1_000)
            reply = Draft(body=Message.assistant("Yes."), usage=usage, cost_usd=cost, created_at=at)
            await store.append(client, Draft(body=Message.user("So?"), created_at=at), reply)

    asyncio.run(append("imported", cost=None))
    assert "not known: 1 call without a known price or output, 1,000 tokens" in read_usage()
    imported = invoke_cli("context", "show", "--usage", "imported").stdout
    assert "not known: 1 call without a known price or output, 1,000 tokens" in imported
    assert "$" not in read_usage()
    asyncio.run(append("priced", cost=0.25))
    assert "at least $0.25, and 1 call without a known price or output, 1,000 tokens" in read_usage()
    rows = {row.split()[0]: row for row in invoke_cli("scan", "--usage", "--by", "source").stdout.splitlines()}
    assert "$0.25" in rows["priced"]
    assert ("–" in rows["imported"], "$" in rows["imported"]) == (True, False)


def test_one_dimension_has_its_rows_alone(usage: None):
    period, *rows = invoke_cli("scan", "--usage", "--by", "source").stdout.splitlines()
    assert period.startswith("Usage since ")
    assert [row.split()[0] for row in rows] == ["source", "─" * len(rows[1].split()[0]), "codex"]
    groups = run_json("scan", "--usage", "--by", "tool")["groups"]
    assert [(each["name"], each["counts"]["uses"]) for each in groups["tool"]] == [("read_chart", 1)]
    assert run_json("scan", "--usage", "--since", "2999-01-01")["totals"]["turns"] == 0


def test_its_json_is_that_of_the_api(usage: None):
    document = run_json("scan", "--usage")
    validate_document(document, StatsSchema)
    assert document == get_json("/api/stats", limit=5)
    assert [each["seq"] for each in document["turns"]] == [49, 46, 44, 42, 40]


def test_a_recount_says_what_it_corrected(usage: None, home: CliHome):
    assert "The roll-up equals the log of" in invoke_cli("scan", "--usage", "--recount").stdout

    async def change() -> None:
        from sqlalchemy import text

        async with SqlStore.open(f"sqlite:///{home.database}") as store:
            change = text("UPDATE quire_usage_totals SET turns = 7 WHERE dimension = 'all'")
            await store.run(write, lambda connection, _: connection.execute(change))

    asyncio.run(change())
    assert run_json("scan", "--usage", "--recount")["recount"]["corrected_totals"] > 0
    assert run_json("scan", "--usage")["totals"]["turns"] == TURNS


def test_today_has_no_turn_of_yesterday(home: CliHome):
    reply = Usage(model="gpt-4o", input_tokens=9, output_tokens=1)
    turn = TurnTotals(steps=1, usage=reply, cost_usd=0.5)

    async def append() -> None:
        async with SqlStore.open(f"sqlite:///{home.database}") as store:
            for days in (0, 1):
                at = home.clock.now - days * 86_400_000_000
                question = Draft(body=Message.user("Hello"), created_at=at)
                answer = Draft(body=Message.assistant("Hi"), usage=reply, turn=turn, created_at=at)
                await store.create_conversation(f"{days} days ago")
                await store.append(f"{days} days ago", question, answer)

    asyncio.run(append())
    today = datetime.fromtimestamp(home.clock.now / 1_000_000, UTC).date()
    assert run_json("scan", "--usage", "--since", str(today))["totals"]["turns"] == 1
    assert run_json("scan", "--usage", "--since", "2026-01-01")["totals"]["turns"] > 1


def test_figures_of_the_last_days_say_what_is_before_them(home: CliHome):
    async def append() -> None:
        async with SqlStore.open(home.url) as store:
            await store.create_conversation("old")
            usage = Usage(model="gpt-4o", input_tokens=1_000, output_tokens=50)
            reply = Draft(body=Message.assistant("Aye."), usage=usage, created_at=1_700_000_000_000_000)
            await store.append("old", Message.user("Ahoy?"), reply)

    asyncio.run(append())
    assert "for all, since 2023-11-14: quire scan --usage --since 2023-11-14" in " ".join(read_usage().split())
    assert "for all" not in invoke_cli("scan", "--usage", "--since", "2023-11-14").stdout
    assert run_json("scan", "--usage")["first_day"] == "2023-11-14"
