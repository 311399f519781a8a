"""The database is set back to an earlier state while a server runs: the first retry restores what the client has."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from gateway_fixtures import assistant_message, run_gateway, user_message
from sqlalchemy import Connection, delete, insert, select

from fake_upstream import respond_with_text, run_fake_upstream
from quire.db.database import LossCallback, TransactionOptions
from quire.db.schema import api_keys, metadata
from quire.errors import StoreUnavailable
from quire.store import SqlStore

TABLES = [table for table in metadata.sorted_tables if table is not api_keys]
QUESTIONS = [user_message(f"Question {number}") for number in range(4)]
ANSWER = assistant_message("a")


async def save_state(store: SqlStore) -> Callable[[Connection], None]:
    """Returns a function that puts all tables back to their present rows."""

    def read(connection: Connection) -> list[list[dict[str, Any]]]:
        return [[dict(row) for row in connection.execute(select(table)).mappings()] for table in TABLES]

    saved = await store.base.database.read(read, TransactionOptions(store.tenant))

    def restore(connection: Connection) -> None:
        for table in reversed(TABLES):
            connection.execute(delete(table))
        for table, rows in zip(TABLES, saved, strict=True):
            if rows:
                connection.execute(insert(table), rows)

    return restore


def build_history(turns: int) -> list[dict[str, Any]]:
    """The messages of a client with this number of answered questions, and its next question."""
    answered = [message for question in QUESTIONS[:turns] for message in (question, ANSWER)]
    return [*answered, QUESTIONS[turns]]


@pytest.mark.parametrize("surviving_turns", [0, 1, 2])
async def test_the_first_retry_restores_what_the_client_has(
    store: SqlStore, surviving_turns: int, caplog: pytest.LogCaptureFixture
):
    async with run_fake_upstream(respond_with_text("a")) as up, run_gateway(store, up.url) as harness:
        restore = await save_state(store)
        for turn in range(3):
            if turn == surviving_turns:
                restore = await save_state(store)
            assert (await harness.ask(*build_history(turn), x_quire_conversation="c")).status_code == 200
        await store.base.database.write(restore, TransactionOptions(store.tenant))
        with caplog.at_level(logging.WARNING):
            answers = [await harness.ask(*build_history(3), x_quire_conversation="c") for _ in range(2)]
        assert answers[0].status_code in (200, 503)
        if answers[0].status_code == 503:
            assert (answers[0].json()["code"], answers[0].headers["retry-after"]) == ("store_rolled_back", "1")
            first_lost = 2 * surviving_turns + 1
            assert f"conversation 'c', branch 0, lost the entries {first_lost} to 6" in caplog.text
        assert answers[1].status_code == 200
        stored = await harness.load_messages("c")
        assert stored == [(each["role"], each["content"]) for each in (*build_history(3), ANSWER)]
        assert await store.verify_conversation("c") == []


async def test_a_lost_connection_clears_the_cached_heads(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    callbacks: list[LossCallback] = []
    monkeypatch.setattr(store.base.database, "on_connection_loss", callbacks.append)
    async with run_fake_upstream(respond_with_text("a")) as up, run_gateway(store, up.url) as harness:
        restore = await save_state(store)
        assert (await harness.ask(QUESTIONS[0], x_quire_conversation="c")).status_code == 200
        await store.base.database.write(restore, TransactionOptions(store.tenant))
        for callback in callbacks:
            callback()
        assert (await harness.ask(*build_history(1), x_quire_conversation="c")).status_code == 200
        assert len(up.requests) == 2
        assert len(await harness.load_messages("c")) == 4


async def test_no_model_is_called_while_the_log_is_known_to_be_away(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    """The second turn has a cached head and a cached key, so it needs no query before the model call."""

    async def refuse(_: SqlStore) -> None:
        raise StoreUnavailable

    async with run_fake_upstream(respond_with_text("a")) as up, run_gateway(store, up.url) as harness:
        await harness.ask(QUESTIONS[0], x_quire_conversation="c")
        with monkeypatch.context() as patch:
            patch.setattr(SqlStore, "check_recordable", refuse)
            refused = await harness.ask(*build_history(1), x_quire_conversation="c")
            sent = await harness.http.post("/api/conversations/c/send", json={"message": "Question"})
        assert (refused.status_code, refused.headers["retry-after"], sent.status_code) == (503, "1", 503)
        assert len(up.requests) == 1
        assert (await harness.ask(*build_history(1), x_quire_conversation="c")).status_code == 200
