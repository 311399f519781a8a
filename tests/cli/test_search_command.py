"""`quire search`: every conversation at once, filters, order, highlights, and times as people write them."""

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest
import typer
from cli_fixtures import NEXT_DAY, START_TIME, TIDES_ID, CliHome, invoke_cli, run_json, validate_document

from quire.cli.search import parse_time
from quire.log import ConversationOrigin
from quire.model import Draft, Message
from quire.schemas.search import MessageHitSchema
from quire.store import SqlStore

DAY_MICROS = 86_400_000_000


@pytest.fixture
def birds(home: CliHome) -> str:
    """The id of another conversation, which Claude Code sent."""

    async def append() -> None:
        async with SqlStore.open(f"sqlite:///{home.database}") as store:
            origin = ConversationOrigin(client="claude-code", project="/home/ada/birds")
            await store.create_conversation("birds", title="Birds", origin=origin)
            message = Message.user("At high tide the gannets dive.", name="Ada")
            await store.append("birds", Draft(body=message, created_at=START_TIME - 10 * DAY_MICROS))

    asyncio.run(append())
    return "birds"


def find(*words: str) -> list[tuple[str, int]]:
    messages = run_json("search", *words)["messages"]
    return [(each["conversation"]["id"], each["entry"]["seq"]) for each in messages]


def test_all_conversations_are_searched(home: CliHome, birds: str):
    assert find("gannet") == [(birds, 1)]
    assert {conversation for conversation, _ in find("tide")} == {TIDES_ID, birds}
    assert len(find("tide", "--limit", "1")) == 1


def test_the_document_is_as_documented(home: CliHome):
    document = run_json("search", "spring tide")
    assert sorted(document) == ["complete", "messages", "query"]
    validate_document(document["messages"][0], MessageHitSchema)
    assert document["complete"] is True


def test_a_person_sees_title_place_and_excerpt(home: CliHome):
    printed = invoke_cli("search", "spring tide", "--limit", "1").stdout
    assert "Tides" in printed
    assert f"{TIDES_ID} #" in printed
    assert "spring tide" in printed
    assert invoke_cli("search", "xylophone").stdout == "No message matches.\n"


def test_messages_are_filtered(home: CliHome, birds: str):
    everywhere = set(find("tide", "--limit", "100"))
    for options in (
        (birds,),
        ("--project", "/home/ada/birds"),
        ("--source", "claude-code"),
        ("--person", "Ada"),
        ("--until", "2025-12-31"),
    ):
        assert find("tide", *options) == [(birds, 1)]
    assert set(find("tide", "--since", "2025-12-31", "--limit", "100")) == everywhere - {(birds, 1)}
    assert set(find("tide", birds, TIDES_ID, "--limit", "100")) == everywhere
    roles = {each["entry"]["role"] for each in run_json("search", "tide", "--role", "assistant")["messages"]}
    assert roles == {"assistant"}
    assert find("tide", "--source", "codex") == []


def test_messages_are_ordered_by_time_or_score(home: CliHome, birds: str):
    oldest = find("high tide", "--order", "oldest", "--limit", "100")
    assert oldest[0] == (birds, 1)
    assert find("high tide", "--order", "newest", "--limit", "100") == oldest[::-1]
    scores = [each["score"] for each in run_json("search", "high tide", "--limit", "100")["messages"]]
    assert scores == sorted(scores, reverse=True)


def test_wrong_use_is_refused(home: CliHome):
    assert invoke_cli("search", "x", "--since", "soon").exit_code == 2
    missing = invoke_cli("search", "x", "missing")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert "There is no conversation 'missing'" in missing.stderr


def test_an_empty_log_has_no_match(home: CliHome):
    home.database.unlink()
    assert run_json("search", "hello") == {"query": "hello", "messages": [], "complete": True}


def test_a_date_is_a_whole_local_day(monkeypatch: pytest.MonkeyPatch):
    first = parse_time("2026-01-05", end_of_day=False)
    assert datetime.fromtimestamp(first / 1_000_000) == datetime(2026, 1, 5)
    assert parse_time("2026-01-05", end_of_day=True) - first == DAY_MICROS
    assert parse_time("2026-01-05T09:00+00:00", end_of_day=True) == START_TIME
    assert parse_time("2026-01-06T09:00+00:00", end_of_day=False) == NEXT_DAY


@pytest.mark.parametrize(("age", "days"), [("48h", 2), ("7d", 7), ("2w", 14)])
def test_an_age_is_subtracted_from_now(age: str, days: int):
    expected = time.time() * 1_000_000 - days * DAY_MICROS
    assert abs(parse_time(age, end_of_day=False) - expected) < 2 * 3_600_000_000  # A clock change may lie between.


@pytest.mark.parametrize("text", ["", "soon", "7", "7y", "2026-13-01", "9999-12-31", "99999999d"])
def test_what_is_no_time_is_refused(text: str):
    with pytest.raises(typer.BadParameter, match="2026-01-31T14:00"):
        parse_time(text, end_of_day=True)


@pytest.mark.parametrize("text", ["0001-01-02", "99999w", "٧d"])
def test_a_time_before_1970_is_the_first(text: str):
    assert parse_time(text, end_of_day=False) >= 0


def test_the_command_stands_in_the_docs():
    assert "## quire search\n" in (Path(__file__).parents[2] / "docs/commands.md").read_text()
