"""Whole sessions of Claude Code, Codex and opencode: what they add to messages is no conversation.

`data/whole_sessions.jsonl` has the last request of ten recorded sessions with every text as it was sent, the reply,
`words`, which is what the user and the models said in it, and `files` that the user referred to. The share of
boilerplate is that of the words of a text that stand in a run of five which only texts of the agents have.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_fixtures import MODEL, run_gateway
from typer.testing import CliRunner

from infra.scripted_provider import ScriptedReply, play, run_scripted_provider
from quire.cli.app import app
from quire.engine import Engine, EngineConfig
from quire.engine.handover import write_handover
from quire.engine.recall import recall_session
from quire.engine.search import search_messages
from quire.log import ConversationRecord
from quire.model import Compaction, Span
from quire.proxy.client_origin import find_session
from quire.search.tokenizer import tokenize_query
from quire.settings import Settings
from quire.store import SqlStore

SESSIONS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "whole_sessions.jsonl").read_text(encoding="utf-8").splitlines()
]
QUERIES = ("commit", "skill", "environment", "pull request attribution", "directory", "the user", "tools", "file")
"""What the agents' own texts are full of."""
MAX_SHARE = 0.05
RUN_WORDS = 5
MIN_TEXT_CHARS = 100
"""Shorter texts may be ids and names of a request's format."""


async def record(store: SqlStore, sessions: Sequence[dict[str, Any]] = SESSIONS) -> dict[str, ConversationRecord]:
    """Sends the sessions through the gateway; returns their conversations by name."""
    recorded: dict[str, ConversationRecord] = {}
    with run_scripted_provider(play(*(ScriptedReply(each["reply"]) for each in sessions))) as provider:
        speaks = ["messages", "responses", "chat"]
        upstreams = {"*": {"base_url": provider.openai_url, "speaks": speaks}}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness:
            for each in sessions:
                answer = await harness.http.post(each["path"], json=each["body"], headers=each["headers"])
                assert answer.status_code == 200, answer.text
                known = {record.id for record in recorded.values()}
                [recorded[each["name"]]] = [
                    record for record in await store.list_conversations() if record.id not in known
                ]
    return recorded


def make_engine(store: SqlStore) -> Engine:
    return Engine(store, EngineConfig.create(Settings.model_validate({"model": "gpt-4o", "strategy": "hybrid"})))


def normalize(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def list_runs(text: str) -> set[tuple[str, ...]]:
    words = normalize(text).split()
    return {tuple(words[index : index + RUN_WORDS]) for index in range(len(words) - RUN_WORDS + 1)}


def list_texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for each in value for text in list_texts(each)]
        case dict():
            return [text for each in value.values() for text in list_texts(each)]
        case _:
            return []


def list_boilerplate(session: dict[str, Any]) -> set[tuple[str, ...]]:
    """Runs of words in user and system messages that are not in `words` and `files`: they are the agent's."""
    items = session["body"].get("messages") or session["body"]["input"]
    agent_texts: list[str] = []
    for item in items:
        if item.get("role") in ("user", "system", "developer"):
            content = item["content"]
            blocks = [content] if isinstance(content, str) else [each["text"] for each in content if "text" in each]
            agent_texts += blocks
    runs = {run for text in agent_texts for run in list_runs(text)}
    return runs - {run for text in (*session["words"], *session["files"]) for run in list_runs(text)}


def measure_share(text: str, boilerplate: set[tuple[str, ...]]) -> tuple[int, int]:
    """Words of the text in runs of the agent's, and all of its words."""
    words = normalize(text).split()
    covered = set[int]()
    for index in range(len(words) - RUN_WORDS + 1):
        if tuple(words[index : index + RUN_WORDS]) in boilerplate:
            covered.update(range(index, index + RUN_WORDS))
    return len(covered), len(words)


def share(measured: list[tuple[int, int]]) -> float:
    return sum(found for found, _ in measured) / max(1, sum(total for _, total in measured))


async def test_every_session_names_its_client_and_project(store: SqlStore):
    clients = {"c": "claude-code", "x": "codex", "opencode": "opencode"}
    instructions = SESSIONS[-1]["body"]["messages"][0]["content"]
    # opencode sends the same instructions to each provider, to this one in a field that was not recorded.
    opencode = {**SESSIONS[-2], "body": {**SESSIONS[-2]["body"], "system": [{"type": "text", "text": instructions}]}}
    for name, conversation in (await record(store, [*SESSIONS[:-2], opencode, SESSIONS[-1]])).items():
        assert conversation.origin is not None
        origin = (conversation.origin.client, conversation.origin.project, conversation.origin.purpose)
        assert origin == (clients[name.partition("_")[0]], "/home/dev/mill", None), name


def test_a_login_of_opencode_is_not_taken_for_codex():
    [opencode] = [each for each in SESSIONS if each["name"] == "opencode_openai"]
    session = opencode["headers"]["x-session-affinity"]
    headers = {**opencode["headers"], "session-id": session}
    assert find_session(headers, Settings().session_headers) == ("opencode", session)


async def test_a_hand_over_has_the_words_of_the_session_and_not_the_agents_texts(store: SqlStore):
    recorded, engine, shares = await record(store), make_engine(store), list[float]()
    for session in SESSIONS:
        text = (await write_handover(engine, recorded[session["name"]].id)).text
        missing = [each for each in session["words"] if normalize(each) not in normalize(text)]
        assert missing == [], (session["name"], text)
        shares.append(share([measure_share(text, list_boilerplate(session))]))
    assert max(shares) < MAX_SHARE, shares


async def test_search_finds_the_words_of_every_session_and_not_the_agents_texts(store: SqlStore):
    recorded, engine = await record(store), make_engine(store)
    boilerplate = {recorded[each["name"]].id: list_boilerplate(each) for each in SESSIONS}
    hits = [hit for query in QUERIES for hit in (await search_messages(engine, query)).messages]
    measured = [measure_share(hit.excerpt, boilerplate[hit.conversation.id]) for hit in hits]
    assert share(measured) < MAX_SHARE, measured
    for session in SESSIONS:
        for text in filter(tokenize_query, session["words"]):
            found = await search_messages(engine, text, limit=40)
            assert any(normalize(text) in normalize(hit.excerpt) for hit in found.messages), (session["name"], text)


async def test_recall_returns_the_words_of_a_session_and_not_the_agents_texts(store: SqlStore):
    recorded, engine = await record(store), make_engine(store)
    measured: list[tuple[int, int]] = []
    for session in SESSIONS:
        conversation = recorded[session["name"]]
        [branch] = await store.list_branches(conversation.id)
        await store.append(conversation.id, Compaction(number=1, covers=Span(first=1, last=branch.head_seq)))
        assert conversation.origin is not None
        client, name = conversation.origin.client, conversation.origin.session
        assert client is not None
        assert name is not None
        for prompt in (*session["words"], *QUERIES):
            text = await recall_session(engine, client=client, session=name, prompt=prompt)
            assert prompt in QUERIES or normalize(prompt) in normalize(text), (session["name"], prompt, text)
            measured.append(measure_share(text, list_boilerplate(session)))
    assert share(measured) < MAX_SHARE, measured


async def test_the_log_has_every_text_and_titles_are_the_first_questions(store: SqlStore):
    recorded = await record(store)
    for session in SESSIONS:
        entries = await store.read_range(recorded[session["name"]].id, kinds=["message"])
        stored = {text for entry in entries for text in list_texts(json.loads(entry.raw))}
        items = session["body"].get("messages") or session["body"]["input"]
        sent = [text for item in items if item.get("role") == "user" for text in list_texts(item["content"])]
        assert [text for text in sent if text not in stored and len(text) > MIN_TEXT_CHARS] == []
    titled = await store.fill_titles(*recorded.values())
    first = {name: title.title for name, title in zip(recorded, titled, strict=True)}
    assert first == {
        "c_read": "Which port does the tide gate use? We decided that the time-out is 12 seconds.",
        "c_plan": "Plan the sluice repair; the budget is 900 pounds.",
        "c_compact": "The user wants the miller's ledger in YAML; file ledger.yaml.",
        "c_sub": "Have the sacks in the loft counted.",
        "c_hook": "Grade the flour of batch 9. /grade 9",
        "x_one": "Which port has the gate? We agreed on a time-out of 12 seconds.",
        "x_compact": "How many paddles has the wheel?",
        "x_sub": "Have the sacks counted by an agent.",
        "opencode": '"How many rows has the ledger?"',
        "opencode_openai": '"Of what wood are the paddles?"',
    }


async def test_views_of_a_session_show_its_last_request_and_not_one_that_is_never_made(
    store: SqlStore, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    session = SESSIONS[0]
    with run_scripted_provider(play(ScriptedReply(session["reply"]))) as provider:
        upstreams = {"*": {"base_url": provider.openai_url, "speaks": ["messages"]}}
        models = {session["body"]["model"]: {"window": 1_000_000}}
        async with run_gateway(store, provider.openai_url, upstreams=upstreams, models=models) as harness:
            answer = await harness.http.post(session["path"], json=session["body"], headers=session["headers"])
            assert answer.status_code == 200, answer.text
            [record] = await store.list_conversations()
            [(reply, manifest)] = await store.list_manifests(record.id, limit=1)
            path = f"/api/conversations/{record.id}"
            usage = (await harness.http.get(f"{path}/usage")).json()
            context = (await harness.http.get(f"{path}/context")).json()
            asked = (await harness.http.get(f"{path}/context", params={"message": "And now?"})).json()
    assert (usage["window"], usage["total_tokens"]) == (1_000_000, manifest.full_history_tokens)
    assert (context["policy"]["model"], context["digest"]) == (session["body"]["model"], manifest.digest)
    # A question is asked by Quire itself.
    assert asked["policy"]["model"] == MODEL
    monkeypatch.setenv("QUIRE_DATABASE_URL", database_url)
    monkeypatch.setenv("HOME", str(tmp_path))
    printed = await asyncio.to_thread(CliRunner().invoke, app, ["context", "show", "--json"])
    shown = json.loads(printed.stdout)
    assert (shown["reply"], shown["manifest"]["policy"]["window"]) == (reply, 1_000_000)
