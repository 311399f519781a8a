"""Files in formats that are known from descriptions: programs that cannot run here."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from infra.export_samples import write_json

START_MS = 1_794_960_000_000
CALL: Any = {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "echo ahoy"}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "call_1", "content": "ahoy"}


def say(role: str, *blocks: Any, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return {"role": role, "content": content, **fields}


def write_database(path: Path, schema: str, **rows: list[tuple[Any, ...]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(schema)
        for table, values in rows.items():
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    return path


def write_task(folder: Path) -> Path:
    """A task of Roo Code that was condensed: what it hides stays in the file."""
    task = folder / "tasks" / str(START_MS)
    history = [
        say("user", "Greet.", ts=START_MS, condenseParent="c1"),
        say("assistant", "I will greet.", CALL, ts=START_MS + 2_000, condenseParent="c1"),
        say("user", RESULT, ts=START_MS + 3_000, condenseParent="c1"),
        say("user", "The user was greeted.", ts=START_MS + 5_000, isSummary=True, condenseId="c1"),
        say("user", "Once more.", ts=START_MS + 6_000, aNewField={"x": 1}),
        say("assistant", "Ahoy.", ts=START_MS + 8_000),
    ]
    requests = [
        {"tokensIn": 900, "cacheReads": 100, "tokensOut": 20, "cost": 0.5, "apiProtocol": "anthropic"},
        {"tokensIn": 1_000, "cacheReads": 100, "tokensOut": 20, "cost": 0.5, "apiProtocol": "openai"},
    ]
    says = [
        {"ts": START_MS + at, "type": "say", "say": "api_req_started", "text": json.dumps(request)}
        for at, request in zip((1_000, 7_000), requests, strict=True)
    ]
    task.mkdir(parents=True)
    write_json(task / "ui_messages.json", [{"ts": START_MS, "type": "say", "say": "text", "text": "Greet."}, *says])
    write_json(task / "history_item.json", {"id": task.name, "task": "Greet.", "workspace": "/home/user/project"})
    write_json(task / "api_conversation_history.json", history)
    return task.parent


def write_goose(folder: Path) -> Path:
    """A session that was compacted: the agent no longer sees the first messages, the user not the summary."""
    hidden, summary = json.dumps({"userVisible": True, "agentVisible": False}), json.dumps({"userVisible": False})
    call = {"status": "success", "value": {"name": "shell", "arguments": {"command": "echo ahoy"}}}
    result = {"status": "success", "value": {"content": [{"type": "text", "text": "ahoy"}], "isError": False}}
    contents: list[tuple[str, Any, str]] = [
        ("user", [{"type": "text", "text": "Greet."}], hidden),
        ("assistant", [{"type": "toolRequest", "id": "call_1", "toolCall": call}], hidden),
        ("user", [{"type": "toolResponse", "id": "call_1", "toolResult": result}], hidden),
        ("user", [{"type": "text", "text": "The user was greeted."}], summary),
        ("user", [{"type": "text", "text": "Once more."}], "{}"),
        ("assistant", [{"type": "text", "text": "Ahoy."}, {"type": "aNewKind", "x": 1}], "{}"),
    ]
    schema = """
        CREATE TABLE sessions (id TEXT, name TEXT, session_type TEXT, working_dir TEXT, created_at TEXT,
            updated_at TEXT);
        CREATE TABLE messages (id INTEGER, message_id TEXT, session_id TEXT, role TEXT, content_json TEXT,
            created_timestamp INTEGER, metadata_json TEXT);"""
    rows: list[tuple[Any, ...]] = [
        (number, f"msg_{number}", "s1", role, json.dumps(content), START_MS // 1_000 + number, metadata)
        for number, (role, content, metadata) in enumerate(contents)
    ]
    times = ("2026-11-18 00:00:00", "2026-11-18 00:01:00")
    session = ("s1", "Greet", "user", "/home/user/project", *times)
    return write_database(folder / "sessions" / "sessions.db", schema, sessions=[session], messages=rows).parent


def write_amp(folder: Path) -> Path:
    usage = {"model": "m1", "inputTokens": 900, "outputTokens": 20, "cacheReadInputTokens": 100}
    messages = [
        say("user", "Greet.", messageId=0),
        say("assistant", "I will greet.", CALL, messageId=1, usage=usage, aNewField=1),
        say("user", RESULT, messageId=2),
        say("assistant", "Ahoy.", {"type": "a_new_kind", "x": 1}, messageId=3, usage=usage),
    ]
    tree = {"initial": {"trees": [{"uri": "file:///home/user/project"}]}}
    thread = {"id": "T-1", "title": "Greet", "created": START_MS, "env": tree, "messages": messages}
    folder.mkdir(exist_ok=True)
    return write_json(folder / "T-1.json", thread).parent


def write_zed(folder: Path) -> Path:
    call = {"id": "call_1", "name": "terminal", "input": {"command": "echo ahoy"}}
    result = {"tool_name": "terminal", "is_error": False, "content": {"Text": "ahoy"}}
    usage = {"input_tokens": 900, "output_tokens": 20, "cache_read_input_tokens": 100}
    thread = {
        "version": "0.3.0",
        "title": "Greet",
        "messages": [
            {"User": {"id": "u1", "content": [{"Text": "Greet."}]}},
            {"Agent": {"content": [{"Text": "I will greet."}, {"ToolUse": call}], "tool_results": {"call_1": result}}},
            {"Compaction": {"Summary": "The user was greeted."}},
            "Resume",
            {"User": {"id": "u2", "content": [{"Text": "Once more."}, {"ANewKind": {}}]}},
            {"Agent": {"content": [{"Text": "Ahoy."}], "tool_results": {}}},
        ],
        "request_token_usage": {"u1": usage, "u2": usage},
        "model": {"provider": "p", "model": "m1"},
    }
    schema = """CREATE TABLE threads (id TEXT, summary TEXT, updated_at TEXT, data_type TEXT, data BLOB, parent_id TEXT,
        folder_paths TEXT, created_at TEXT)"""
    row = ("t1", "Greet", "2026-11-18T00:00:00Z", "json", json.dumps(thread).encode(), None, "/home/user/project", None)
    return write_database(folder / "threads" / "threads.db", schema, threads=[row]).parent


def write_lm_studio(folder: Path) -> Path:
    def step(text: str, **fields: Any) -> dict[str, Any]:
        stats = {"promptTokensCount": 1_000, "predictedTokensCount": 20}
        generation = {"identifier": "m1", "stats": stats}
        content = [{"type": "text", "text": text}]
        return {"type": "contentBlock", "content": content, "genInfo": generation, **fields}

    user = {"type": "singleStep", "role": "user", "content": [{"type": "text", "text": "Greet."}]}
    replies = [
        {"type": "multiStep", "role": "assistant", "steps": [step("Hello.")]},
        {
            "type": "multiStep",
            "role": "assistant",
            "steps": [step("They want it.", style={"type": "thinking"}), step("Ahoy.")],
        },
    ]
    messages = [{"versions": [user], "currentlySelected": 0}, {"versions": replies, "currentlySelected": 1}]
    (folder / "conversations" / "letters").mkdir(parents=True)
    chat = {"name": "Greet", "createdAt": START_MS, "systemPrompt": "Be brief.", "messages": messages}
    write_json(folder / "conversations" / "letters" / "1.conversation.json", chat)
    return folder / "conversations"


def write_copilot_chat(folder: Path) -> Path:
    """The log of a session: its first state, a request that is added, and its response."""
    rounds = [
        {"response": "I will greet.", "toolCalls": [{"id": "call_1", "name": "run", "arguments": '{"command":"x"}'}]},
        {"response": "Ahoy.", "toolCalls": []},
    ]
    metadata = {"toolCallRounds": rounds, "toolCallResults": {"call_1": {"content": [{"value": "ahoy"}]}}}
    first: dict[str, Any] = {"requestId": "r1", "responseId": "a1", "message": {"text": "Greet."}, "modelId": "m1"}
    second = {"requestId": "r2", "responseId": "a2", "message": {"text": "Once more."}}
    response = [{"value": "Ahoy."}, {"kind": "aNewKind", "x": 1}]
    lines: list[dict[str, Any]] = [
        {"kind": 0, "v": {"version": 3, "sessionId": "s1", "creationDate": START_MS, "requests": []}},
        {"kind": 2, "k": ["requests"], "v": [first]},
        {"kind": 1, "k": ["requests", 0, "result"], "v": {"metadata": metadata}},
        {"kind": 2, "k": ["requests"], "v": [{**second, "response": [{"value": "no"}]}]},
        {"kind": 2, "k": ["requests", 1, "response"], "i": 0, "v": response},
        {"kind": 1, "k": ["customTitle"], "v": "Greet"},
        {"kind": 3, "k": ["requests", 0, "modelId"]},
    ]
    sessions = folder / "w1" / "chatSessions"
    sessions.mkdir(parents=True)
    write_json(folder / "w1" / "workspace.json", {"folder": "file:///home/user/my%20project"})
    (sessions / "s1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


DESCRIBED: dict[str, Callable[[Path], Path]] = {
    "roo-code": write_task,
    "cline (extension)": write_task,
    "kilo (extension)": write_task,
    "goose": write_goose,
    "amp": write_amp,
    "zed": write_zed,
    "lm-studio": write_lm_studio,
    "copilot-chat": write_copilot_chat,
}
"""Writers of the files of each source, below a folder; a source may have several."""
