"""`quire key`, called as a person calls it."""

import asyncio
import json

import pytest
from cli_fixtures import NEXT_DAY, CliHome, invoke_cli
from typer.testing import Result

from quire.access.keys import ApiKey
from quire.cli.key import _format_spending
from quire.store import SqlStore

HOUR_MICROSECONDS = 3_600_000_000
INVALID_PERIODS = ("", "0d", "d", "9", "-1d", "9m", "1.5d", "999999999w", "\u0663d")


def create_key(*words: str) -> Result:
    outcome = invoke_cli("key", "create", *words)
    assert outcome.exit_code == 0, outcome.output
    return outcome


def verify_key(url: str, text: str) -> ApiKey | None:
    """Verifies a key's text against the database."""

    async def verify() -> ApiKey | None:
        async with SqlStore.open(url) as store:
            return await store.keys.verify(text)

    return asyncio.run(verify())


def test_what_is_printed_is_the_key_and_nothing_else_on_one_line(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "30")
    outcome = create_key("script", "--scope", "read", "--scope", "chat", "--requests-per-minute", "5")
    key = verify_key(home.url, outcome.stdout.removesuffix("\n"))
    assert key is not None
    assert (key.name, key.tenant, key.scopes, key.requests_per_minute) == ("script", "default", {"read", "chat"}, 5)
    assert "Copy it now" in outcome.stderr
    assert key.id not in outcome.stderr


def test_a_key_can_be_another_tenants_which_others_do_not_list(home: CliHome):
    text = create_key("theirs", "--scope", "read", "--tenant", "acme").stdout.strip()
    key = verify_key(home.url, text)
    assert key is not None
    assert key.tenant == "acme"
    assert key.id not in invoke_cli("key", "list").stdout
    assert key.id in invoke_cli("key", "list", "--tenant", "acme").stdout
    refused = invoke_cli("key", "revoke", key.id)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert invoke_cli("key", "revoke", key.id, "--tenant", "acme").exit_code == 0
    assert verify_key(home.url, text) is None
    assert "revoked" in invoke_cli("key", "list", "--tenant", "acme").stdout


def test_keys_of_ended_runs_are_not_listed(home: CliHome):
    """Each `quire run` has a key of its own, which would push all others out of the list."""
    mine = verify_key(home.url, create_key("mine", "--scope", "read").stdout.strip())
    for number in range(3):
        key = verify_key(home.url, create_key("quire run claude", "--scope", "chat").stdout.strip())
        assert key is not None
        if number < 2:
            assert invoke_cli("key", "revoke", key.id).exit_code == 0
    listed = json.loads(invoke_cli("key", "list", "--json").stdout)["keys"][:2]
    assert mine is not None
    assert [(each["name"], each["revoked_at"]) for each in listed] == [("quire run claude", None), ("mine", None)]


@pytest.mark.parametrize(("period", "hours"), [("12h", 12), ("90d", 90 * 24), ("4w", 4 * 7 * 24)])
def test_a_key_expires_after_its_period(home: CliHome, period: str, hours: int):
    document = json.loads(create_key("guest", "--scope", "read", "--expires", period, "--json").stdout)
    [listed, _] = json.loads(invoke_cli("key", "list", "--json").stdout)["keys"]
    assert listed["expires_at"] == NEXT_DAY + hours * HOUR_MICROSECONDS
    assert document == listed | {"tenant": "default", "key": document["key"]}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["create", "x"], 2),
        (["create", "x", "--scope", "all"], 1),
        (["create", "", "--scope", "read"], 1),
        (["create", "x", "--scope", "read", "--tenant", ""], 1),
        *((["create", "x", "--scope", "read", "--expires", period], 2) for period in INVALID_PERIODS),
        (["create", "x", "--scope", "read", "--requests-per-minute", "0"], 2),
        (["create", "x", "--scope", "read", "--max-spend", "0"], 1),
        (["create", "x", "--scope", "read", "--max-spend", "nan"], 1),
        (["create", "x", "--scope", "read", "--model", ""], 1),
        (["revoke", "nobody"], 3),
        (["revoke"], 2),
    ],
)
def test_what_cannot_be_done_says_so_and_does_nothing(home: CliHome, words: list[str], code: int):
    before = invoke_cli("key", "list").stdout
    failed = invoke_cli("key", *words)
    assert (failed.exit_code, failed.stdout) == (code, "")
    assert failed.stderr
    assert invoke_cli("key", "list").stdout == before


def test_without_keys_one_is_told_how_to_make_one(home: CliHome):
    assert "quire key create" in invoke_cli("key", "list", "--tenant", "nobody").stdout


def test_limits_and_spending_are_listed(home: CliHome):
    text = create_key(
        "intern", "--scope", "chat", "--max-spend", "2.5", "--model", "gpt-4o*", "--model", "house"
    ).stdout
    key = verify_key(home.url, text.strip())
    assert key is not None
    assert (key.max_spend, key.models) == (2.5, ("gpt-4o*", "house"))

    async def spend() -> None:
        async with SqlStore.open(home.url) as store:
            await store.create_conversation("spent")
            await store.spending.add_cost("spent", 0.125, key_id=key.id)

    asyncio.run(spend())
    given = ("--set", 'tenant_quotas={"default": {"max_spend": 10}}')
    table = invoke_cli("key", "list", *given).stdout
    assert "$0.1250 of $2.50" in table
    assert "The tenant default has spent $0.1250 of $10.00." in table
    document = json.loads(invoke_cli("key", "list", "--json", *given).stdout)
    assert (document["spent_usd"], document["max_spend"]) == (0.125, 10.0)
    [listed] = [each for each in document["keys"] if each["id"] == key.id]
    assert (listed["spent_usd"], listed["max_spend"], listed["models"]) == (0.125, 2.5, ["gpt-4o*", "house"])


@pytest.mark.every_postgres
def test_it_is_the_same_on_postgresql(home: CliHome, database_url: str):
    given = ("--set", f"database_url={database_url}")
    text = create_key("script", "--scope", "admin", "--tenant", "acme", *given).stdout.strip()
    key = verify_key(database_url, text)
    assert key is not None
    outcome = invoke_cli("key", "revoke", key.id, "--tenant", "acme", *given)
    assert outcome.exit_code == 0, outcome.output
    assert verify_key(database_url, text) is None


def test_a_cap_below_a_cent_is_not_printed_as_nothing():
    assert _format_spending(0.001, 0.003) == "$0.0010 of $0.0030"
    assert _format_spending(0.0, 5.0) == "$0.0000 of $5.00"


def test_a_table_of_a_hundred_columns_has_every_name_whole(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    scopes = ("read", "write", "chat", "approve", "admin")
    limits = ("--expires", "90d", "--requests-per-minute", "1200", "--max-spend", "12.5", "--model", "gpt-4o-mini")
    for name in ("intern", "night-report"):
        create_key(name, *(word for scope in scopes for word in ("--scope", scope)), *limits)
    table = invoke_cli("key", "list").stdout
    keys = json.loads(invoke_cli("key", "list", "--json").stdout)["keys"]
    names = " ".join(f"{each['id']} {each['name']}" for each in keys).split()
    assert not {"$12.50", "1,200", "gpt-4o-mini", *scopes, *names} - set(table.split())
    assert "…" not in table
