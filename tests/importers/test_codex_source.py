"""The reader of Codex's rollouts, on files that Codex wrote."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from importers.transcript_files import (
    FOLDERS,
    copy_transcripts,
    import_path,
    read_conversation,
    read_lines,
    write_lines,
)
from quire.engine.file_import import find_version
from quire.importers import codex
from quire.importers.codex import CodexSource
from quire.sources.base import SourceConversation, SourceError, SourceMessage
from quire.store import SqlStore

SOURCE = CodexSource()
THREAD, SUB_AGENT, FORK = SOURCE.find_files(FOLDERS["codex"])


def make_item(text: str, role: str = "user", **fields: Any) -> dict[str, Any]:
    item = {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
    return {"timestamp": "2026-01-02T03:04:05.000Z", "type": "response_item", "payload": {**item, **fields}}


def make_compaction(*texts: str) -> dict[str, Any]:
    # The history of older versions has no ids.
    replacement = [make_item(text)["payload"] for text in texts]
    return {"type": "compacted", "timestamp": "2026-01-02T03:04:06Z", "payload": {"replacement_history": replacement}}


META = {"timestamp": "2026-01-02T03:04:05.000Z", "type": "session_meta", "payload": {"id": "t", "cwd": "/p"}}


def write_rollout(folder: Path, *lines: dict[str, Any], age_seconds: float = 3_600) -> Path:
    path = folder / "sessions" / "rollout-2026-01-02T03-04-05-t.jsonl"
    return write_lines(path, [META, *lines], age_seconds=age_seconds)


def read_messages(path: Path) -> list[SourceMessage]:
    return read_conversation("codex", path)[1]


def select_texts(messages: list[SourceMessage]) -> list[str]:
    return [each.message.text for each in messages if each.message.text and not each.message.text.startswith("<")]


def test_a_thread_is_one_line_of_messages_across_its_compaction():
    messages = read_messages(THREAD)
    assert [message.parent for message in messages] == [None, *(message.id for message in messages[:-1])]
    assert [message.message.role for message in messages if not message.message.text.startswith("<")] == [
        "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant", "tool", "assistant", "user",
        "user", "assistant",
    ]  # fmt: skip
    assert select_texts(messages)[-2:] == ["Once more.", "After the summary."]


def test_the_items_of_a_response_are_one_message_with_its_usage():
    messages = read_messages(THREAD)
    [reply] = [each for each in messages if each.message.text == "I will greet."]
    assert [part.type for part in reply.message.parts] == ["thinking", "text", "tool_call"]
    assert reply.usage is not None
    assert (reply.usage.model, reply.usage.input_tokens > 1_000, reply.usage.output_tokens) == ("local-model", True, 20)
    replies = [each for each in messages if each.message.role == "assistant"]
    assert all(each.usage for each in replies)


def test_a_compaction_has_its_summary_its_usage_and_what_it_preserves():
    messages = read_messages(THREAD)
    [summary] = [each for each in messages if each.compaction]
    assert summary.compaction is not None
    assert summary.compaction.summary is not None
    assert summary.compaction.summary.endswith("The user greeted and delegated.")
    assert summary.usage is not None
    texts = {each.id: each.message.text for each in messages}
    # Codex says its instructions again.
    kept = [texts[each] for each in summary.compaction.preserved]
    assert [text for text in kept if not text.startswith("<")] == ["Greet.", "Delegate."]
    assert "The user greeted and delegated." not in texts.values()


def test_a_sub_agent_is_a_conversation_of_the_session():
    conversation, messages = read_conversation("codex", SUB_AGENT)
    parent = read_conversation("codex", THREAD)[0]
    origin = conversation.origin
    assert (origin.client, origin.session, origin.parent_agent) == ("codex", parent.id, parent.id)
    assert (origin.agent, origin.purpose, origin.project) == (conversation.id, "subagent", "/home/dev/project")
    assert select_texts(messages) == ["Greet them.", "Greeted."]


def test_a_fork_continues_the_history_of_its_base():
    base, fork = read_messages(THREAD), read_messages(FORK)
    assert [each.id for each in fork[: len(base)]] == [each.id for each in base]
    assert select_texts(fork[len(base) :]) == ["Another way.", "In the fork."]


def test_a_fork_without_its_base_is_read_with_an_error(tmp_path: Path):
    folder = copy_transcripts("codex", tmp_path / "sessions")
    (folder / THREAD.relative_to(FOLDERS["codex"])).unlink()
    [conversation] = SOURCE.read(folder / FORK.relative_to(FOLDERS["codex"]))
    assert isinstance(conversation, SourceConversation)
    error, *messages = conversation.messages
    assert isinstance(error, SourceError)
    assert "was not found" in error.reason
    assert len(messages) == 2


def test_forks_of_each_other_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(codex, "MAX_FORK_DEPTH", 3)
    meta = {**META, "payload": {"id": "t", "forked_from_id": "t", "forked_from_ordinal_exclusive": 1}}
    path = write_lines(tmp_path / "sessions" / "rollout-1-t.jsonl", [meta, make_item("One.")])
    [conversation] = SOURCE.read(path)
    assert isinstance(conversation, SourceConversation)
    assert isinstance(next(iter(conversation.messages)), SourceError)


def test_a_thread_id_that_is_a_pattern_finds_no_file(tmp_path: Path):
    meta = {**META, "payload": {"id": "t", "forked_from_id": "../*", "forked_from_ordinal_exclusive": 1}}
    path = write_lines(tmp_path / "sessions" / "rollout-1-t.jsonl", [meta, make_item("One.")])
    [conversation] = SOURCE.read(path)
    assert isinstance(conversation, SourceConversation)
    assert isinstance(next(iter(conversation.messages)), SourceError)


def test_items_without_ids_have_the_same_ids_after_codex_rewrites_the_file(tmp_path: Path):
    lines = [make_item("One."), make_item("Two."), make_item("Three.")]
    before = read_messages(write_rollout(tmp_path, *lines))
    after = read_messages(write_rollout(tmp_path, *lines[1:]))
    assert [each.id for each in after] == [each.id for each in before[1:]]
    assert len({each.id for each in before}) == 3


def test_older_versions_report_usage_in_events(tmp_path: Path):
    counts = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    event = {"type": "event_msg", "payload": {"type": "token_count", "info": {"last_token_usage": counts}}}
    context = {"type": "turn_context", "payload": {"model": "gpt-5"}}
    path = write_rollout(tmp_path, context, make_item("One."), make_item("First.", "assistant"), event, event)
    _, reply = read_messages(path)
    assert reply.usage is not None
    assert (reply.usage.model, reply.usage.input_tokens, reply.usage.output_tokens) == ("gpt-5", 9, 2)


@pytest.mark.parametrize(("age", "count"), [(0, 1), (60, 2)])
def test_a_reply_without_usage_at_the_end_of_a_growing_file_is_held_back(tmp_path: Path, age: int, count: int):
    path = write_rollout(tmp_path, make_item("One."), make_item("So f", "assistant"), age_seconds=age)
    assert len(read_messages(path)) == count


def test_a_compaction_of_an_older_version_has_its_summary_in_the_replacement(tmp_path: Path):
    text = "Another language model started to solve this problem and produced a summary of it. A wheel was built."
    *_, summary = read_messages(write_rollout(tmp_path, make_item("One."), make_compaction("One.", text)))
    assert summary.compaction is not None
    assert summary.compaction.summary == text


def test_the_last_words_of_the_user_are_no_summary(tmp_path: Path):
    lines = [make_item("One."), make_item("Two."), make_item("One."), make_compaction("One.", "Two.")]
    messages = read_messages(write_rollout(tmp_path, *lines))
    compaction = messages[-1].compaction
    assert compaction is not None
    assert (compaction.summary, compaction.trigger) == (None, "provider")
    # Of two with the same words, the newer one was kept.
    assert sorted(compaction.preserved) == sorted(each.id for each in messages[1:3])


def test_a_summary_that_cannot_be_read_and_replaces_nothing_is_no_message(tmp_path: Path):
    assert len(read_messages(write_rollout(tmp_path, make_compaction("One."), make_item("One.")))) == 1


@pytest.mark.parametrize(("age", "count"), [(60, 1), (700, 2)])
def test_a_reply_whose_tool_is_running_waits_for_its_usage(tmp_path: Path, age: int, count: int):
    call = {"type": "function_call", "name": "grind", "arguments": "{}", "call_id": "c1"}
    line = {"timestamp": "2026-01-02T03:04:06Z", "type": "response_item", "payload": call}
    path = write_rollout(tmp_path, make_item("One."), line, age_seconds=age)
    conversation, messages = read_conversation("codex", path)
    assert (len(messages), conversation.unfinished_replies) == (count, 2 - count)
    assert (find_version(SOURCE, path) is None) == (count == 1)


def test_unknown_lines_and_snapshots_are_named(tmp_path: Path):
    snapshot = {"type": "response_item", "payload": {"type": "ghost_snapshot"}}
    [message] = read_messages(write_rollout(tmp_path, {"type": "hologram"}, snapshot, make_item("One.")))
    assert message.dropped == ("hologram", "ghost_snapshot")


def test_items_that_cannot_be_read_are_errors(tmp_path: Path):
    path = write_rollout(tmp_path, make_item("One."), make_item("x", "narrator"), make_item("Three."))
    [conversation] = SOURCE.read(path)
    assert isinstance(conversation, SourceConversation)
    first, error, third = conversation.messages
    assert isinstance(error, SourceError)
    assert error.item.endswith(":3")
    assert isinstance(first, SourceMessage)
    assert isinstance(third, SourceMessage)
    assert third.parent == first.id


def test_files_are_found_where_codex_stores_them(tmp_path: Path):
    sessions = copy_transcripts("codex", tmp_path / "sessions")
    write_lines(tmp_path / "archived_sessions" / "rollout-1-a.jsonl", [META])
    write_lines(tmp_path / "sessions" / "other.jsonl", [META])
    assert SOURCE.find_default_paths({"CODEX_HOME": str(tmp_path)}) == [sessions, tmp_path / "archived_sessions"]
    assert len(list(SOURCE.find_files(tmp_path))) == 4
    assert SOURCE.find_default_paths({"HOME": str(tmp_path)}) == []


def compress(path: Path) -> Path:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    packed = path.with_suffix(".jsonl.zst")
    packed.write_bytes(zstd.compress(path.read_bytes()))
    path.unlink()
    os.utime(packed, (1, 1))
    return packed


def test_a_compressed_rollout_is_read(tmp_path: Path):
    path = write_rollout(tmp_path, make_item("One."))
    plain = read_messages(path)
    packed = compress(path)
    assert list(SOURCE.find_files(tmp_path)) == [packed]
    assert read_messages(packed) == plain


def test_a_damaged_compressed_rollout_is_an_error(tmp_path: Path):
    packed = compress(write_rollout(tmp_path, make_item("One.")))
    packed.write_bytes(b"not compressed")
    [error] = SOURCE.read(packed)
    assert isinstance(error, SourceError)
    assert "cannot be unpacked" in error.reason


def test_a_compressed_rollout_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packed = compress(write_rollout(tmp_path, make_item("x" * 5_000_000)))
    assert packed.stat().st_size < 10_000
    monkeypatch.setattr(codex, "MAX_UNPACKED_BYTES", 1_000_000)
    [conversation] = SOURCE.read(packed)
    assert isinstance(conversation, SourceConversation)
    [error] = conversation.messages
    assert isinstance(error, SourceError)
    assert "1,000,000 bytes" in error.reason


def test_without_the_library_a_compressed_rollout_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packed = tmp_path / "rollout-1-t.jsonl.zst"
    packed.write_bytes(b"")
    for name in ("compression", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    importlib.invalidate_caches()
    [error] = SOURCE.read(packed)
    assert isinstance(error, SourceError)
    assert "install" in error.reason


def test_the_fixtures_name_no_machine():
    for path in (THREAD, SUB_AGENT, FORK):
        assert "/tmp/" not in path.read_text()
        assert read_lines(path)[0]["payload"]["cwd"] == "/home/dev/project"


async def test_a_list_of_tools_is_no_title(store: SqlStore, tmp_path: Path):
    tools = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "look"}]}
    line = {"timestamp": "2026-01-02T03:04:05.000Z", "type": "response_item", "payload": tools}
    context = make_item("<environment_context>\n<cwd>/p</cwd>\n</environment_context>")
    path = write_rollout(tmp_path, line, context, make_item("Where is the mill?"))
    await import_path(store, "codex", path)
    [titled] = await store.fill_titles(*await store.list_conversations())
    assert titled.title == "Where is the mill?"
