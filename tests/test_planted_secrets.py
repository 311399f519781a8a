"""A hundred secrets of twenty formats in imported transcripts: none leaves Quire, all are found and can be erased."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from infra.database_dump import contains_text, dump_database
from infra.sizes import IS_FULL_SIZE
from quire.engine import Engine, open_engine
from quire.engine.file_import import import_files
from quire.engine.handover import write_handover
from quire.engine.recall import recall_session
from quire.engine.shared_transcript import SharedTranscript, ShareFormat, find_conversation_secrets
from quire.mcp_server.server import build_local_server
from quire.sources.registry import SOURCES
from secret_samples import SecretSample, list_samples

SAMPLES = [sample for seed in range(2) for sample in list_samples(seed)]
SESSIONS = ("session-1", "session-2")


def make_line(session: str, number: int, kind: str, content: Any, **fields: Any) -> dict[str, Any]:
    line = {"uuid": f"{session}-{number}", "parentUuid": f"{session}-{number - 1}" if number else None}
    common = {"sessionId": session, "cwd": "/p", "isSidechain": False, "timestamp": "2026-01-05T09:00:00.000Z"}
    return {**line, **common, "type": kind, "message": {"role": kind, "content": content}, **fields}


def plant(session: str, number: int, sample: SecretSample) -> list[dict[str, Any]]:
    """A question with the secret, or a call and a result that print it among much else."""
    if number % 2:
        return [make_line(session, 3 * number, "user", f"The deploy key of service {number}:\n{sample.text}\n")]
    call = {"type": "tool_use", "id": f"c{number}", "name": "Bash", "input": {"command": f"echo '\n{sample.text}\n'"}}
    output = "deploy log line\n" * 50 + json.dumps({"stdout": sample.text}) + "\nmore log" * 50
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": output}
    reply = make_line(session, 3 * number, "assistant", [call])
    reply["message"] |= {"id": f"m{session}{number}", "model": "claude", "type": "message", "stop_reason": "tool_use"}
    return [reply, make_line(session, 3 * number + 1, "user", [result])]


def write_transcripts(folder: Path) -> list[Path]:
    """Two sessions; the second was compacted, with secrets in its summary too."""
    paths: list[Path] = []
    for session, samples in zip(SESSIONS, (SAMPLES[::2], SAMPLES[1::2]), strict=True):
        lines = [line for number, sample in enumerate(samples) for line in plant(session, number, sample)]
        for before, after in pairwise(lines):
            after["parentUuid"] = before["uuid"]
        if session == SESSIONS[1]:
            boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None}
            summary = f"We deployed with {samples[0].text}"
            lines += [
                {**boundary, "sessionId": session, "logicalParentUuid": lines[-1]["uuid"]},
                make_line(session, 9_000, "user", summary, parentUuid="b", isCompactSummary=True),
                make_line(session, 9_001, "user", "Which deploy key is it?"),
            ]
        path = folder / f"{session}.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        paths.append(path)
    return paths


@pytest.fixture
async def engine(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with open_engine(database_url, model="gpt-4o") as engine:
        report = await import_files(engine, SOURCES["claude-code"], write_transcripts(tmp_path))
        assert report.errors == []
        await engine.wait_for_background()
        yield engine


def find_leaks(text: str) -> list[str]:
    """Kinds of the secrets in a text, also where JSON escapes their line breaks."""
    plain = text.replace("\\\\n", "\n").replace("\\n", "\n").replace("\\/", "/")
    return [
        sample.kind
        for sample in SAMPLES
        if any(piece in text or piece in plain for piece in sample.value.split("\n") if len(piece) >= 12)
    ]


async def list_ids(engine: Engine) -> list[str]:
    return [record.id for record in await engine.store.list_conversations()]


async def read_all_by_mcp(engine: Engine) -> AsyncIterator[str]:
    """Every answer of the MCP server that may contain text of a message."""

    @asynccontextmanager
    async def open_shared() -> AsyncIterator[Engine]:
        yield engine

    async with Client(build_local_server(open_shared, may_write=False), mode="auto") as client:

        async def call(name: str, **arguments: Any) -> str:
            return (await client.call_tool(name, arguments)).model_dump_json()

        yield await call("history_list")
        for query in ("deploy key", "deploy log line", "stdout", "summary"):
            yield await call("history_search", query=query)
        for conversation in await list_ids(engine):
            head = (await engine.store.get_branch(conversation)).head_seq
            # Each answer has the messages on both sides, so that every message is in several.
            for seq in range(1, head + 1, 3):
                yield await call("history_read", conversation=conversation, around=seq)
            for resource in (await client.list_resources()).resources:
                yield (await client.read_resource(resource.uri)).model_dump_json()
            prompt = await client.get_prompt("resume", {"conversation": conversation})
            yield prompt.model_dump_json()


async def test_no_mcp_answer_contains_a_secret(engine: Engine):
    answers = [answer async for answer in read_all_by_mcp(engine)]
    assert find_leaks("".join(answers)) == []
    assert sum(answer.count("[masked ") for answer in answers) >= len(SAMPLES)


async def test_no_hand_over_or_recall_contains_a_secret(engine: Engine):
    for conversation in await list_ids(engine):
        for max_tokens in (500, 4_000, 50_000):
            handover = await write_handover(engine, conversation, max_tokens=max_tokens)
            assert find_leaks(handover.model_dump_json()) == []
    recalled = await recall_session(
        engine, client="claude-code", session=SESSIONS[1], prompt="the deploy key of service 3"
    )
    assert "[masked " in recalled
    assert find_leaks(recalled) == []


@pytest.mark.parametrize("format", ["markdown", "json"])
async def test_no_shared_transcript_contains_a_secret(engine: Engine, format: ShareFormat):
    masked = 0
    for conversation in await list_ids(engine):
        branch = await engine.store.get_branch(conversation)
        record = await engine.store.get_conversation(conversation)
        transcript = SharedTranscript(engine.store, record, branch, format=format)
        text = "".join([piece async for piece in transcript.write()])
        assert find_leaks(text) == []
        masked += transcript.masked_count
    assert masked >= len(SAMPLES)


async def test_every_secret_is_found(engine: Engine):
    assert len(SAMPLES) >= 100
    assert len({sample.kind for sample in SAMPLES}) >= 20
    found = [
        location.kind
        for conversation in await list_ids(engine)
        async for location in find_conversation_secrets(engine.store, conversation)
    ]
    # A secret in a call and in its result is found in both.
    assert not [kind for kind in {sample.kind for sample in SAMPLES} if found.count(kind) < count_planted(kind)]


def count_planted(kind: str) -> int:
    return sum(sample.kind == kind for sample in SAMPLES)


@pytest.mark.every_database
@pytest.mark.slow
async def test_a_purge_of_each_value_leaves_none_in_any_table(engine: Engine, admin_url: str, tmp_path: Path):
    assert all(contains_text(dump_database(admin_url), sample.value.split("\n")[0]) for sample in SAMPLES[:3])
    purged_samples = SAMPLES if IS_FULL_SIZE else SAMPLES[:: 12 if admin_url.startswith("sqlite") else 24]
    for sample in purged_samples:
        purged = await engine.store.purge_value(sample.value)
        assert purged.remaining == ()
    # The ledger knows the purged messages, so that a second import does not bring them back.
    report = await import_files(engine, SOURCES["claude-code"], write_transcripts(tmp_path))
    assert report.messages == 0
    dump = dump_database(admin_url)
    assert not [each.kind for each in purged_samples if contains_text(dump, each.value.split("\n")[0])]
    for conversation in await list_ids(engine):
        assert await engine.store.verify_conversation(conversation) == []


async def test_imports_of_a_tenant_whose_secrets_are_masked_store_none(
    database_url: str, admin_url: str, tmp_path: Path
):
    paths = write_transcripts(tmp_path)
    async with open_engine(database_url, model="gpt-4o", tenant_masking={"*": {}}) as engine:
        report = await import_files(engine, SOURCES["claude-code"], paths)
        assert report.errors == []
        await engine.wait_for_background()
        heads = [(await engine.store.get_branch(each)).head_seq for each in await list_ids(engine)]
        assert find_leaks(dump_database(admin_url).decode("latin-1")) == []
        for conversation in await list_ids(engine):
            assert await engine.store.verify_conversation(conversation) == []
            assert [each async for each in find_conversation_secrets(engine.store, conversation)] == []
        assert (await engine.search("deploy key")).messages
        # The ledger knows the items by the digests of their unmasked content.
        for path in paths:
            path.write_text(path.read_text() + "\n")
        await import_files(engine, SOURCES["claude-code"], paths)
        assert [(await engine.store.get_branch(each)).head_seq for each in await list_ids(engine)] == heads
