"""No upstream is called for a reply that cannot be recorded: its tokens would be paid for in vain."""

import os
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from gateway_fixtures import assistant_message, run_gateway, user_message

from fake_upstream import respond_with_text, run_fake_upstream
from quire.db.raw_sql import get_driver
from quire.db.store_part import TransactionOptions
from quire.errors import StoreFull
from quire.store import SqlStore

QUESTIONS = 5
BLOB_SIZES = (100_000, 5_000, 500)
"""Bytes of what fills the file, until nothing of the size fits."""


class FullDatabase:
    """Makes a database full, and gives it room again."""

    def __init__(self, store: SqlStore, admin_url: str) -> None:
        self.store, self.admin_url = store, admin_url

    async def fill(self) -> None:
        if self.admin_url.startswith("sqlite"):
            await self._set_max_pages(1)
            for size in BLOB_SIZES:
                with suppress(StoreFull):
                    for _ in range(1_000):
                        await self.store.put_blob(os.urandom(size), media_type="text/plain")
        else:
            # What does not fit in memory is written to the disk.
            self._execute("ALTER DATABASE {} SET temp_file_limit = 0")

    async def give_room(self) -> None:
        if self.admin_url.startswith("sqlite"):
            await self._set_max_pages(1_000_000)
        else:
            self._execute("ALTER DATABASE {} RESET temp_file_limit")

    async def _set_max_pages(self, pages: int) -> None:
        def run(connection: Any) -> None:
            get_driver(connection).execute(f"PRAGMA max_page_count = {pages}").fetchall()

        await self.store.base.database.write(run, TransactionOptions(self.store.tenant))

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(statement.format(connection.info.dbname))  # pyright: ignore


@pytest.fixture
def full_database(store: SqlStore, admin_url: str, monkeypatch: pytest.MonkeyPatch) -> FullDatabase:
    for module in ("sqlite", "postgres"):
        monkeypatch.setattr(f"quire.db.{module}.WRITE_PROOF_SECONDS", -1.0)
    monkeypatch.setattr("quire.db.sqlite.HEALTH_PROOF_SECONDS", -1.0)
    monkeypatch.setattr("quire.server.routes.health.READINESS_CACHE_SECONDS", -1.0)
    return FullDatabase(store, admin_url)


@pytest.mark.every_database
async def test_while_a_database_is_full_no_question_is_forwarded(store: SqlStore, full_database: FullDatabase):
    async with run_fake_upstream(respond_with_text("Noted.")) as up, run_gateway(store, up.url) as harness:
        assert (await harness.ask(user_message("Hello"))).status_code == 200
        await full_database.fill()
        answers = [await harness.ask(user_message(f"Question {number}")) for number in range(QUESTIONS)]
        assert {each.status_code for each in answers} == {503}
        assert (await harness.http.get("/readyz")).status_code == 503
        assert len(up.requests) == 1
        await full_database.give_room()
        assert (await harness.http.get("/readyz")).status_code == 200
        assert (await harness.ask(user_message("Hello again"))).status_code == 200


@pytest.mark.every_database
async def test_while_a_database_is_full_questions_pass_if_the_settings_say_so(
    store: SqlStore, full_database: FullDatabase
):
    """What was not recorded is in the list of the next request, which says so."""
    async with (
        run_fake_upstream(respond_with_text("Noted.")) as up,
        run_gateway(store, up.url, on_store_failure="pass_through") as harness,
    ):
        messages = [user_message("Hello")]
        first = await harness.ask(*messages, x_quire_conversation="c")
        assert "x-quire-recorded" not in first.headers
        await full_database.fill()
        for number in range(QUESTIONS):
            messages += [assistant_message("Noted."), user_message(f"Question {number}")]
            answer = await harness.ask(*messages, x_quire_conversation="c")
            assert (answer.status_code, answer.headers["x-quire-recorded"]) == (200, "no")
        assert len(up.requests) == 1 + QUESTIONS
        await full_database.give_room()
        messages += [assistant_message("Noted."), user_message("And now?")]
        last = await harness.ask(*messages, x_quire_conversation="c")
        assert "x-quire-recorded" not in last.headers
        stored = await harness.load_messages("c", int(last.headers["x-quire-branch"]))
        assert [text for _, text in stored] == [each["content"] for each in messages] + ["Noted."]


async def test_a_disk_without_room_is_seen_without_a_write(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    async with run_fake_upstream(respond_with_text("Noted.")) as up, run_gateway(store, up.url) as harness:
        assert (await harness.ask(user_message("Hello"))).status_code == 200
        monkeypatch.setattr("quire.db.sqlite.shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=0)))
        refused = await harness.ask(user_message("Question"))
        assert (refused.status_code, refused.json()["code"]) == (503, "store_full")
        assert len(up.requests) == 1


async def test_no_summary_is_asked_for_that_cannot_be_recorded(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    from quire.engine import Engine, EngineConfig
    from quire.model import Message
    from quire.settings import Settings
    from quire.testing.scripted_model import ScriptedModel

    summarizer = ScriptedModel("They walked. [#1]", repeat=True)
    engine = Engine(store, EngineConfig.create(Settings(model="gpt-4o", context_limit=2_000), summarizer=summarizer))
    conversation = await engine.conversation("c")
    for number in range(40):
        await conversation.append(f"Day {number}: {'rain and wind ' * 12}", Message.assistant(f"Noted, {number}."))
    monkeypatch.setattr("quire.db.sqlite.shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=0)))
    with pytest.raises(StoreFull):
        await conversation.compact()
    assert summarizer.prompts == []
