"""Forms of pi, Oh My Pi, opencode's exports and Copilot CLI that real files have, with words of our own."""

import json
from pathlib import Path
from typing import Any

from importers.transcript_files import import_path, read_conversation, write_lines
from infra.export_samples import ReadConversation, read_source
from quire.sources.registry import SOURCES
from quire.store import SqlStore

SESSION: dict[str, Any] = {"type": "session", "id": "s1", "timestamp": "2026-01-02T03:04:05.000Z", "cwd": "/mill"}
PI_USAGE = {"input": 10, "output": 5, "cacheRead": 90, "cacheWrite": 0, "cost": {"total": 0.5}}


def make_pi_entry(role: str, text: str, **fields: Any) -> dict[str, Any]:
    message = {"role": role, "content": [{"type": "text", "text": text}], **fields}
    return {"type": "message", "timestamp": "2026-01-02T03:04:06.000Z", "message": message}


def read_pi(path: Path) -> ReadConversation:
    read = read_source(SOURCES["pi"], path)
    assert read.errors == []
    return read.only


def test_a_compaction_of_pi_names_the_first_entry_that_it_keeps_by_number(tmp_path: Path):
    compaction = {"type": "compaction", "summary": "A wheel was built.", "firstKeptEntryIndex": 4, "tokensBefore": 900}
    entries = [
        SESSION,
        make_pi_entry("user", "Build the wheel."),
        make_pi_entry("assistant", "Built.", model="m1", usage=PI_USAGE),
        {"type": "thinking_level_change", "thinkingLevel": "high"},
        {"type": "model_change", "modelId": "m2"},
        make_pi_entry("user", "And the stones?"),
        make_pi_entry("assistant", "Cut."),
        compaction,
        make_pi_entry("user", "Grind."),
        {**compaction, "firstKeptEntryIndex": 9},
    ]
    messages = read_pi(write_lines(tmp_path / "s1.jsonl", entries)).messages
    texts = {each.id: each.message.text for each in messages}
    first, second = (each.compaction for each in messages if each.compaction is not None)
    assert [texts[id_] for id_ in first.preserved] == ["And the stones?", "Cut."]
    assert first.tokens_before == 900
    assert second.preserved == ()


def test_a_command_that_the_user_ran_in_pi_is_a_message(tmp_path: Path):
    commands = [
        {"command": "ls", "output": "wheel\n", "exitCode": 0},
        {"command": "grind", "output": "", "exitCode": 2},
        {"command": "wait", "output": "", "cancelled": True, "truncated": True, "fullOutputPath": "/log"},
    ]
    entries = [{"type": "message", "message": {"role": "bashExecution", **each}} for each in commands]
    messages = read_pi(write_lines(tmp_path / "s1.jsonl", [SESSION, *entries])).messages
    assert [(each.message.role, each.message.text) for each in messages] == [
        ("user", "Ran `ls`\n```\nwheel\n\n```"),
        ("user", "Ran `grind`\n(no output)\n\nCommand exited with code 2"),
        ("user", "Ran `wait`\n(no output)\n\n(command cancelled)\n\n[Output truncated. Full output: /log]"),
    ]


def test_two_entries_of_pi_on_one_line_are_both_read(tmp_path: Path):
    path = write_lines(tmp_path / "s1.jsonl", [SESSION, make_pi_entry("user", "One."), make_pi_entry("user", "Three.")])
    head, one, three = path.read_text().splitlines()
    path.write_text("\n".join([head, one + json.dumps(make_pi_entry("assistant", "Two.")), three, ""]))
    messages = read_pi(path).messages
    assert [each.message.text for each in messages] == ["One.", "Two.", "Three."]
    assert [each.parent for each in messages[1:]] == [each.id for each in messages[:-1]]
    path.write_text(f"{head}\n{one}{{broken\n")
    assert len(read_source(SOURCES["pi"], path).errors) == 1


def test_a_session_of_oh_my_pi_begins_with_its_title(tmp_path: Path):
    title = {"type": "title", "v": 1, "title": "The wheel", "updatedAt": "2026-01-02T03:04:05.000Z", "pad": "  "}
    entry = make_pi_entry("user", "Build.")
    write_lines(tmp_path / ".omp" / "agent" / "sessions" / "-mill-" / "1_s1.jsonl", [title, SESSION, entry])
    [folder] = SOURCES["pi"].find_default_paths({"HOME": str(tmp_path)})
    read = read_pi(folder)
    assert (read.conversation.id, read.conversation.title) == ("s1", "The wheel")
    assert [(each.message.text, each.dropped) for each in read.messages] == [("Build.", ())]


def make_export(parent: str | None = None) -> dict[str, Any]:
    def make_message(id_: str, role: str, *parts: dict[str, Any], **info: Any) -> dict[str, Any]:
        return {"info": {"id": id_, "role": role, "time": {"created": 1_767_323_045_000}, **info}, "parts": list(parts)}

    call = {"type": "tool", "tool": "bash", "callID": "c1", "state": {"input": {"cmd": "ls"}, "output": "wheel"}}
    tokens = {"input": 10, "output": 5, "reasoning": 1, "cache": {"read": 90, "write": 0}}
    made = {"modelID": "m", "tokens": tokens, "cost": 0.25}
    info = {"id": "ses_1", "title": "The mill", "directory": "/mill", "parentID": parent}
    messages = [
        make_message("m1", "user", {"type": "text", "text": "Look."}),
        make_message("m2", "assistant", {"type": "text", "text": "I look."}, call, **made),
        make_message("m3", "user", {"type": "text", "text": "And?"}),
        make_message("m4", "assistant", {"type": "text", "text": "Again."}, {**call, "callID": "c2"}),
        make_message("m5", "user", {"type": "compaction", "auto": True, "tail_start_id": "m3"}),
        make_message("m6", "assistant", {"type": "text", "text": "A wheel."}, summary=True, **made),
    ]
    return {"info": {**info, "time": {"created": 1_767_323_045_000}}, "messages": messages}


def test_an_exported_session_of_opencode_is_read(tmp_path: Path):
    path = tmp_path / "exported"
    path.write_text(json.dumps(make_export(), indent=2))
    conversation, messages = read_conversation("opencode", path)
    assert (conversation.id, conversation.title, conversation.origin.project) == ("ses_1", "The mill", "/mill")
    assert conversation.created_at == 1_767_323_045_000_000
    roles = " ".join(each.message.role for each in messages)
    assert roles == "user assistant tool user assistant tool assistant"
    usage = messages[1].usage
    assert usage is not None
    assert (usage.model, usage.input_tokens, usage.output_tokens) == ("m", 100, 6)
    # A kept reply stays with the result of its call.
    assert messages[-1].compaction is not None
    assert messages[-1].compaction.preserved == tuple(each.id for each in messages[3:6])


async def test_a_compaction_costs_what_its_source_says(store: SqlStore, tmp_path: Path):
    write_lines(tmp_path / "a.json", [make_export()])
    await import_path(store, "opencode", tmp_path)
    [conversation] = await store.list_conversation_ids()
    assert (await store.usage.read_conversation(conversation)).cost_nanos == 500_000_000


def test_exported_sub_agents_of_opencode_belong_to_their_session(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(make_export(parent="ses_0")))
    origin = read_conversation("opencode", path)[0].origin
    assert (origin.session, origin.agent, origin.parent_agent, origin.purpose) == (
        "ses_0", "ses_1", "ses_0", "subagent",
    )  # fmt: skip


def test_a_folder_of_exports_is_read_and_credentials_are_not(tmp_path: Path):
    (tmp_path / "auth.json").write_text('{"provider": {"key": "secret"}}')
    assert list(SOURCES["opencode"].find_files(tmp_path)) == []
    (tmp_path / "a.json").write_text(json.dumps(make_export()))
    assert list(SOURCES["opencode"].find_files(tmp_path)) == [tmp_path / "a.json"]
    (tmp_path / "opencode.db").write_bytes(b"")
    assert list(SOURCES["opencode"].find_files(tmp_path)) == [tmp_path / "opencode.db"]


def test_an_export_without_a_session_is_an_error(tmp_path: Path):
    write_lines(tmp_path / "a.json", [{"info": {}, "messages": []}])
    [error] = read_source(SOURCES["opencode"], tmp_path).errors
    assert "no session" in error.reason


def make_copilot_lines() -> list[dict[str, Any]]:
    def make_reply(id_: str, model: str | None, tokens: int) -> dict[str, Any]:
        data = {"messageId": id_, "content": f"{id_}.", "toolRequests": [], "outputTokens": tokens}
        return {"type": "assistant.message", "id": id_, "data": data | ({"model": model} if model else {})}

    def make_end(**models: tuple[int, int, int]) -> dict[str, Any]:
        metrics = {
            model.replace("_", "-"): {
                "requests": {"count": 1},
                "usage": {"inputTokens": sent, "cacheReadTokens": read, "outputTokens": written},
            }
            for model, (sent, read, written) in models.items()
        }
        return {"type": "session.shutdown", "data": {"modelMetrics": metrics}}

    return [
        {"type": "session.start", "data": {"sessionId": "c1"}},
        {"type": "user.message", "id": "u1", "data": {"content": "Look."}},
        make_reply("a1", "big-1", 10),
        make_reply("a2", "big-1", 20),
        make_reply("a3", "small-1", 5),
        make_end(big_1=(1_001, 800, 30), small_1=(50, 0, 5)),
        {"type": "session.resume", "data": {}},
        make_reply("a4", "big-1", 7),
        make_end(big_1=(1_601, 1_300, 37), small_1=(50, 0, 5)),
        make_reply("a5", None, 3),
    ]


def test_older_versions_of_copilot_store_usage_when_the_session_ends(tmp_path: Path):
    path = write_lines(tmp_path / "c1" / "events.jsonl", make_copilot_lines())
    usages = {each.id: each.usage for each in read_conversation("copilot-cli", path)[1] if each.usage is not None}
    counts = {
        id_: (usage.model, usage.input_tokens, usage.cache_read_tokens, usage.output_tokens)
        for id_, usage in usages.items()
    }
    assert counts == {
        "a1": ("big-1", 500, 400, 10),
        "a2": ("big-1", 501, 400, 20),
        "a3": ("small-1", 50, 0, 5),
        "a4": ("big-1", 600, 500, 7),
        "a5": (None, 0, 0, 3),
    }
    # The sum is the program's. What each reply has of it is not known.
    assert all(usage.estimated for usage in usages.values())
