"""Imported sessions have the cost of their calls by the price list, each call once, whatever forks repeat it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from importers.transcript_files import import_path
from infra.builders import make_turn
from quire.model import Draft, Message, Usage
from quire.store import SqlStore

DATA = Path(__file__).parent / "data"
CLAUDE_CODE_USAGE = {
    "input_tokens": 1_000,
    "cache_creation_input_tokens": 100_000,
    "cache_read_input_tokens": 10_000,
    "output_tokens": 500,
    "server_tool_use": {"web_search_requests": 2},
    "cache_creation": {"ephemeral_1h_input_tokens": 60_000, "ephemeral_5m_input_tokens": 40_000},
}
CLAUDE_CODE_COST = (1_000 * 3 + 40_000 * 3.75 + 60_000 * 6 + 10_000 * 0.3 + 500 * 15) / 1_000_000 + 2 * 0.01


def write_session(folder: Path, session: str, *, answers: int) -> None:
    """A session of Claude Code, in which each reply is two lines with the same usage."""
    lines: list[dict[str, Any]] = []
    for number in range(answers):
        ids = [f"00000000-0000-4000-8000-{number:06d}{part:06d}" for part in range(3)]
        parent = lines[-1]["uuid"] if lines else None
        shared = {"sessionId": session, "timestamp": "2026-11-01T10:00:00Z", "cwd": "/w", "isSidechain": False}
        question = {"role": "user", "content": f"question {number}"}
        lines.append({**shared, "type": "user", "uuid": ids[0], "parentUuid": parent, "message": question})
        for part in (1, 2):
            message = {
                "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929",
                "content": [{"type": "text", "text": f"answer {number}.{part}"}], "stop_reason": "end_turn",
                "usage": CLAUDE_CODE_USAGE,
            }  # fmt: skip
            line = {**shared, "type": "assistant", "uuid": ids[part], "parentUuid": ids[part - 1], "message": message}
            lines.append(line)
    folder.mkdir(exist_ok=True)
    (folder / f"{session}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


async def test_a_session_costs_what_the_price_list_says_and_a_fork_only_what_it_adds(store: SqlStore, tmp_path: Path):
    write_session(tmp_path / "project", "original", answers=3)
    write_session(tmp_path / "project", "forked", answers=4)
    await import_path(store, "claude-code", tmp_path)
    ids = await store.list_conversation_ids()
    costs = sorted([await store.get_conversation_cost(each) for each in ids])
    used = [await store.usage.read_conversation(each) for each in ids]
    assert sum(costs) == pytest.approx(4 * CLAUDE_CODE_COST)
    assert len(costs) == 2
    assert sum(each.requests for each in used) == 4
    assert sum(each.turns for each in used) == 7
    assert all(each.unpriced_requests == 0 for each in used)
    await import_path(store, "claude-code", tmp_path)
    assert sorted([await store.get_conversation_cost(each) for each in ids]) == costs


async def test_an_advisers_iterations_are_requests_of_its_model(store: SqlStore, tmp_path: Path):
    write_session(tmp_path / "project", "advised", answers=2)
    path = tmp_path / "project" / "advised.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    own = {"type": "message", "input_tokens": 1_000, "output_tokens": 500}
    advice = {"type": "advisor_message", "input_tokens": 70, "cache_read_input_tokens": 30, "output_tokens": 9}
    for line, model in zip(lines[1:3], 2 * ["claude-opus-4-6"], strict=True):
        line["message"]["usage"] = {**CLAUDE_CODE_USAGE, "iterations": [own, {**advice, "model": model}]}
    for line in lines[4:6]:
        same = {**advice, "model": line["message"]["model"]}
        line["message"]["usage"] = {**CLAUDE_CODE_USAGE, "iterations": [own, same, own]}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    await import_path(store, "claude-code", tmp_path)
    while await store.usage.count():
        pass
    report = await store.usage.read_report()
    used = {each.name: each.counts for each in report.groups["model"]}
    assert (used["claude-opus-4-6"].requests, used["claude-opus-4-6"].input_tokens) == (1, 100)
    assert used["claude-opus-4-6"].cost_nanos == pytest.approx((70 * 5 + 30 * 0.5 + 9 * 25) * 1_000)
    sonnet = used["claude-sonnet-4-5-20250929"]
    assert (sonnet.requests, sonnet.output_tokens) == (3, 2 * 500 + 9)
    assert report.totals.turns == 2


async def test_a_reply_whose_output_was_counted_too_early_costs_at_least_that(store: SqlStore, tmp_path: Path):
    write_session(tmp_path / "project", "older", answers=2)
    path = tmp_path / "project" / "older.jsonl"
    path.write_text(path.read_text().replace('"stop_reason": "end_turn"', '"stop_reason": null'))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    await import_path(store, "claude-code", tmp_path)
    [id_] = await store.list_conversation_ids()
    used = await store.usage.read_conversation(id_)
    assert used.cost_nanos / 1e9 == pytest.approx(2 * CLAUDE_CODE_COST)
    assert (used.unpriced_requests, used.unpriced_tokens) == (2, 0)


@pytest.mark.parametrize("is_separate", [False, True], ids=["one import", "two imports"])
async def test_a_fork_that_states_no_usage_takes_no_cost_from_its_original(
    store: SqlStore, tmp_path: Path, is_separate: bool
):
    # Claude Code writes the last reply before a fork with counts of 0 into the file of the fork.
    write_session(tmp_path / "a", "forked", answers=3)
    path = tmp_path / "a" / "forked.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[-2:]:
        line["message"]["usage"] = {"input_tokens": 0, "output_tokens": 0}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if is_separate:
        await import_path(store, "claude-code", tmp_path)
    write_session(tmp_path / "b", "original", answers=3)
    await import_path(store, "claude-code", tmp_path)
    costs = [await store.get_conversation_cost(each) for each in await store.list_conversation_ids()]
    used = [await store.usage.read_conversation(each) for each in await store.list_conversation_ids()]
    assert sum(each.cost_nanos for each in used) / 1e9 == pytest.approx(3 * CLAUDE_CODE_COST)
    assert sum(costs) == pytest.approx(3 * CLAUDE_CODE_COST)


async def test_a_fork_of_codex_repeats_no_cost(store: SqlStore):
    await import_path(store, "codex", DATA / "codex")
    used = [await store.usage.read_conversation(each) for each in await store.list_conversation_ids()]
    # The rollouts state 106,393 for the session, 7,438 for its sub-agent and 10,149 for the fork.
    assert sum(each.input_tokens for each in used) == 106_393 + 7_438 + 10_149


def rename_lines(path: Path, session: str, prefix: str) -> None:
    """What a version of Claude Code writes that resumes a session under a new id: every line has a new one, too."""
    text = path.read_text().replace("00000000-0000-4000-8000-", f"{prefix}-0000-4000-8000-")
    path.with_name(f"{session}.jsonl").write_text(text.replace(path.stem, session))


async def sum_costs(store: SqlStore) -> float:
    used = [await store.usage.read_conversation(each) for each in await store.list_conversation_ids()]
    return sum(each.cost_nanos for each in used) / 1e9


@pytest.mark.every_database
async def test_a_request_is_counted_once_by_the_id_of_its_response(store: SqlStore, tmp_path: Path):
    write_session(tmp_path / "project", "original", answers=3)
    rename_lines(tmp_path / "project" / "original.jsonl", "resumed", "11111111")
    await import_path(store, "claude-code", tmp_path)
    assert await sum_costs(store) == pytest.approx(3 * CLAUDE_CODE_COST)
    # Whichever of the two is purged, the other is counted.
    for each in sorted(await store.list_conversation_ids()):
        if (await store.usage.read_conversation(each)).requests:
            await store.purge(each)
            break
    while await store.usage.count():
        pass
    assert await sum_costs(store) == pytest.approx(3 * CLAUDE_CODE_COST)
    assert (await store.usage.recount()).corrected_conversations == 0


async def test_a_reply_whose_lines_are_apart_is_counted_once(store: SqlStore, tmp_path: Path):
    # A prompt was typed while the reply was written, so that its lines become two messages.
    write_session(tmp_path / "project", "session", answers=2)
    path = tmp_path / "project" / "session.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[5]["message"]["id"] = lines[1]["message"]["id"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    await import_path(store, "claude-code", tmp_path)
    assert await sum_costs(store) == pytest.approx(2 * CLAUDE_CODE_COST)


async def test_a_recorded_reply_is_counted_before_its_copy_in_a_transcript(store: SqlStore, tmp_path: Path):
    write_session(tmp_path / "project", "session", answers=1)
    await import_path(store, "claude-code", tmp_path)
    usage = Usage(
        model="claude-sonnet-4-5-20250929",
        input_tokens=10,
        output_tokens=2,
        provider_fields={"response": {"id": "msg_0"}},
    )
    for name in ("live", "other"):
        # Upstreams may give one id to several responses: each of them was a request.
        await store.create_conversation(name)
        reply = Draft(body=Message.assistant("Ahoy."), usage=usage)
        await store.record_reply(name, make_turn()._replace(drafts=(Draft(body=Message.user("Greet.")), reply)))
    while await store.usage.count():
        pass
    used = {each: await store.usage.read_conversation(each) for each in await store.list_conversation_ids()}
    assert {each: counts.requests for each, counts in used.items() if counts.requests} == {"live": 1, "other": 1}
    assert (await store.usage.recount()).corrected_conversations == 0
