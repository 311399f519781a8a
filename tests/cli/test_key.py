"""`quire key`, called as a person calls it."""

import asyncio
import json
from datetime import datetime

import pytest
from typer.testing import Result
from world import LATER, Home, run

from quire.log import Key, SqlStore

HOUR = 3_600_000_000
NO_PERIODS = ("", "0d", "d", "9", "-1d", "9m", "1.5d", "999999999w", "\u0663d")


def made(*words: str) -> Result:
    outcome = run("key", "create", *words)
    assert outcome.exit_code == 0, outcome.output
    return outcome


def shown(url: str, text: str) -> Key | None:
    """What the text opens in that database."""

    async def looked() -> Key | None:
        async with SqlStore.open(url) as store:
            return await store.key_shown(text)

    return asyncio.run(looked())


def test_what_is_printed_is_the_key_and_nothing_else_on_one_line(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "30")
    outcome = made("script", "--scope", "read", "--scope", "chat", "--requests-per-minute", "5")
    key = shown(home.url, outcome.stdout.removesuffix("\n"))
    assert key is not None
    assert (key.name, key.tenant, key.scopes, key.requests_per_minute) == ("script", "default", {"read", "chat"}, 5)
    assert "not shown again" in outcome.stderr
    assert key.id not in outcome.stderr


def test_a_key_can_be_another_tenants_which_others_do_not_list(home: Home):
    text = made("theirs", "--scope", "read", "--tenant", "acme").stdout.strip()
    key = shown(home.url, text)
    assert key is not None
    assert key.tenant == "acme"
    assert key.id not in run("key", "list").stdout
    assert key.id in run("key", "list", "--tenant", "acme").stdout
    refused = run("key", "revoke", key.id)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert run("key", "revoke", key.id, "--tenant", "acme").exit_code == 0
    assert shown(home.url, text) is None
    assert "revoked" in run("key", "list", "--tenant", "acme").stdout


@pytest.mark.parametrize(("period", "hours"), [("12h", 12), ("90d", 90 * 24), ("4w", 4 * 7 * 24)])
def test_a_key_expires_after_its_period(home: Home, period: str, hours: int):
    document = json.loads(made("guest", "--scope", "read", "--expires", period, "--json").stdout)
    [listed, _] = json.loads(run("key", "list", "--json").stdout)["keys"]
    assert datetime.fromisoformat(listed["expires_at"]).timestamp() * 1_000_000 == LATER + hours * HOUR
    assert listed == {name: value for name, value in document.items() if name != "key"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["create", "x"], 2),
        (["create", "x", "--scope", "all"], 1),
        (["create", "", "--scope", "read"], 1),
        (["create", "x", "--scope", "read", "--tenant", ""], 1),
        *((["create", "x", "--scope", "read", "--expires", period], 2) for period in NO_PERIODS),
        (["create", "x", "--scope", "read", "--requests-per-minute", "0"], 2),
        (["revoke", "nobody"], 3),
        (["revoke"], 2),
    ],
)
def test_what_cannot_be_done_says_so_and_does_nothing(home: Home, words: list[str], code: int):
    before = run("key", "list").stdout
    failed = run("key", *words)
    assert (failed.exit_code, failed.stdout) == (code, "")
    assert failed.stderr
    assert run("key", "list").stdout == before


def test_without_keys_one_is_told_how_to_make_one(home: Home):
    assert "quire key create" in run("key", "list", "--tenant", "nobody").stdout


@pytest.mark.parametrize("backend", ["postgres18"])
def test_it_is_the_same_on_postgresql(home: Home, database_url: str, backend: str):
    given = ("--set", f"database_url={database_url}")
    text = made("script", "--scope", "admin", "--tenant", "acme", *given).stdout.strip()
    key = shown(database_url, text)
    assert key is not None
    outcome = run("key", "revoke", key.id, "--tenant", "acme", *given)
    assert outcome.exit_code == 0, outcome.output
    assert shown(database_url, text) is None
