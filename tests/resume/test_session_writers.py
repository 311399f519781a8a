"""Sessions of each agent: their files, ids and times, and that they have every message of the log."""

import json
import os
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from importers.transcript_files import import_path
from infra.resume_samples import (
    CLIENTS,
    Piece,
    ResumeSample,
    find_missing,
    list_gemini_pieces,
    list_messages_pieces,
    list_responses_pieces,
    write_sample,
)
from quire.cli.resume import read_history
from quire.errors import InvalidRequest
from quire.resume.claude_code import name_project_folder
from quire.resume.registry import find_writer
from quire.resume.session import NativeSession, SessionPlace, write_session
from quire.store import SqlStore
from quire.wire import wire_format_for

SEEDS = range(6)


async def build(store: SqlStore, sample: ResumeSample, program: str, home: Path, **env: str) -> NativeSession:
    history = await read_history(store, sample.record, branch=0, last=sample.last, program=program)
    work = home / "my Work"
    work.mkdir(exist_ok=True)
    return find_writer(program).build_session(
        history, SessionPlace(work, {"HOME": str(home), **env}, home / "sessions")
    )


@pytest.mark.parametrize(("program", "source"), [("claude", "claude-code"), ("codex", "codex")])
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_written_can_be_imported(program: str, source: str, seed: int, store: SqlStore, tmp_path: Path):
    sample = await write_sample(store, seed, client=CLIENTS[seed % len(CLIENTS)])
    session = await build(store, sample, program, tmp_path)
    write_session(session)
    hour_ago = time.time() - 3_600
    os.utime(session.path, (hour_ago, hour_ago))
    imported = store.for_tenant("imported")
    report = await import_path(imported, source, session.path)
    assert (report.conversations, report.error_count) == (1, 0)
    [record] = await imported.list_conversations()
    assert record.origin is not None
    assert record.origin.project == str(tmp_path / "my Work")
    entries = await imported.read_range(record.id)
    blobs = {digest: (await imported.get_blob(digest)).data for each in entries for digest in each.blob_digests()}
    from base64 import b64encode

    wire = wire_format_for("responses" if program == "codex" else "messages")
    items = [
        item
        for entry in entries
        for item in wire.render_message(entry.message, load_blob=lambda each: b64encode(blobs[each]).decode())
    ]
    pieces = list_responses_pieces(items) if program == "codex" else list_messages_pieces(items)
    assert find_missing(sample, pieces) == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_opencode_and_gemini_sessions_have_every_message(seed: int, store: SqlStore, tmp_path: Path):
    sample = await write_sample(store, seed, client=CLIENTS[seed % len(CLIENTS)])
    exported = json.loads((await build(store, sample, "opencode", tmp_path)).text)
    assert find_missing(sample, list_opencode_pieces(exported["messages"])) == []
    session = await build(store, sample, "gemini", tmp_path)
    _, *lines = map(json.loads, session.text.splitlines())
    contents: list[dict[str, Any]] = []
    for line in lines:
        role, parts = ("user", line["content"]) if line["type"] == "user" else ("model", [line["content"]])
        calls = line.get("toolCalls", [])
        contents.append({"role": role, "parts": [*parts, *(each["args"] for each in calls)]})
        contents.append({"role": "user", "parts": [each["result"] for each in calls]})
    assert find_missing(sample, list_gemini_pieces(contents)) == []


def list_opencode_pieces(messages: list[dict[str, Any]]) -> list[Piece]:
    contents: list[dict[str, Any]] = []
    for message in messages:
        states = [part["state"] for part in message["parts"] if part["type"] == "tool"]
        texts = [part.get("text") or part.get("url") for part in message["parts"] if part["type"] in ("text", "file")]
        role = "user" if message["info"]["role"] == "user" else "model"
        contents.append({"role": role, "parts": [*texts, *(state["input"] for state in states)]})
        results = [[state.get("output"), state.get("error"), state.get("attachments")] for state in states]
        contents.append({"role": "user", "parts": results})
    return list_gemini_pieces(contents)


@pytest.fixture
async def sample(store: SqlStore) -> ResumeSample:
    return await write_sample(store, 7, client="codex")


async def test_lines_of_claude_code_are_one_chain(store: SqlStore, sample: ResumeSample, tmp_path: Path):
    session = await build(store, sample, "claude", tmp_path)
    lines = [json.loads(line) for line in session.text.splitlines()]
    assert [line["parentUuid"] for line in lines] == [None, *(line["uuid"] for line in lines[:-1])]
    assert len({line["uuid"] for line in lines}) == len(lines)
    assert (
        {line["sessionId"] for line in lines}
        == {
            session.id,
        }
        == {session.path.stem}
    )
    assert session.path.parent == tmp_path / ".claude" / "projects" / name_project_folder(str(tmp_path / "my Work"))
    moved = await build(store, sample, "claude", tmp_path, CLAUDE_CONFIG_DIR=str(tmp_path / "other"))
    assert moved.path.is_relative_to(tmp_path / "other" / "projects")
    # Claude Code would continue with a model that it knows.
    assert {line["message"].get("model", "unknown") for line in lines} == {"unknown"}


def test_a_project_is_named_as_claude_code_names_it():
    assert name_project_folder("/home/dev/my_Work.x") == "-home-dev-my-Work-x"
    assert name_project_folder("/é/😀") == "-----"
    long = name_project_folder("/" + "x" * 300)
    assert long.startswith("-" + "x" * 199 + "-")
    assert len(long) < 255


async def test_a_rollout_of_codex_is_named_by_a_new_thread(store: SqlStore, sample: ResumeSample, tmp_path: Path):
    session = await build(store, sample, "codex", tmp_path)
    assert UUID(session.id).version == 7
    assert session.path.name.startswith("rollout-")
    assert session.path.stem.endswith(session.id)
    first, *lines = map(json.loads, session.text.splitlines())
    assert first["type"] == "session_meta"
    assert first["payload"]["cwd"] == str(tmp_path / "my Work")
    assert [line["ordinal"] for line in (first, *lines)] == list(range(len(lines) + 1))
    contents = [line["payload"]["content"] for line in lines if line["payload"].get("type") == "message"]
    assert all(isinstance(content, list) for content in contents)


async def test_a_session_of_gemini_is_found_by_its_marker(store: SqlStore, sample: ResumeSample, tmp_path: Path):
    gemini = tmp_path / ".gemini"
    other = gemini / "tmp" / "my-work" / ".project_root"
    other.parent.mkdir(parents=True)
    other.write_text("/somewhere/my Work")
    session = await build(store, sample, "gemini", tmp_path)
    write_session(session)
    assert session.path.parent == gemini / "tmp" / "my-work-1" / "chats"
    assert (gemini / "tmp" / "my-work-1" / ".project_root").read_text() == str(tmp_path / "my Work")
    # Gemini CLI deletes files that end in the beginning of a resumed session's id.
    assert not session.path.stem.endswith(session.id[:8])
    again = await build(store, sample, "gemini", tmp_path)
    assert again.path.parent == session.path.parent
    (gemini / "projects.json").write_text(json.dumps({"projects": {str(tmp_path / "my Work"): "named"}}))
    registered = await build(store, sample, "gemini", tmp_path)
    assert registered.path.parent == gemini / "tmp" / "named" / "chats"
    assert not (gemini / "tmp" / "named").exists()


async def test_no_prompt_looks_like_a_command_to_gemini(store: SqlStore, sample: ResumeSample, tmp_path: Path):
    session = await build(store, sample, "gemini", tmp_path)
    prompts = [line["content"] for line in map(json.loads, session.text.splitlines()) if line.get("type") == "user"]
    texts = ["".join(part.get("text", "") for part in content).strip() for content in prompts]
    assert any("/Question" in text or "?Question" in text for text in texts)
    assert not [text for text in texts if not text or text.startswith(("/", "?"))]


async def test_ids_of_opencode_ascend_in_the_past(store: SqlStore, sample: ResumeSample, tmp_path: Path):
    exported = json.loads((await build(store, sample, "opencode", tmp_path)).text)
    ids = [each["info"]["id"].removeprefix("msg_") for each in exported["messages"]]
    assert ids == sorted(set(ids))
    following = f"{(time.time_ns() // 1_000_000 * 4096) % 2**48:012x}"
    assert ids[-1] < following
    for message in exported["messages"]:
        parts = [part["id"] for part in message["parts"]]
        assert parts == sorted(set(parts))


async def test_opencode_gets_a_model_of_its_settings(store: SqlStore, sample: ResumeSample, tmp_path: Path):
    async def find_model(**env: str) -> dict[str, str]:
        exported = json.loads((await build(store, sample, "opencode", tmp_path, **env)).text)
        return exported["messages"][0]["info"]["model"]

    state = tmp_path / ".local" / "state" / "opencode" / "model.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"recent": [{"providerID": "local", "modelID": "used-last"}]}')
    assert await find_model() == {"providerID": "local", "modelID": "used-last"}
    config = tmp_path / ".config" / "opencode" / "opencode.jsonc"
    config.parent.mkdir(parents=True)
    config.write_text('{\n  // the user\'s "model"\n  "model": "router/vendor/name", /* \n */ "x": "http://a"}')
    assert await find_model() == {"providerID": "router", "modelID": "vendor/name"}
    content = '{"model": "own/one"}'
    assert await find_model(OPENCODE_CONFIG_CONTENT=content) == {"providerID": "own", "modelID": "one"}


async def test_nothing_that_exists_is_overwritten(store: SqlStore, sample: ResumeSample, tmp_path: Path):
    session = await build(store, sample, "gemini", tmp_path)
    marker = next(iter(session.markers))
    marker.parent.mkdir(parents=True)
    marker.write_text("as it was")
    write_session(session)
    assert marker.read_text() == "as it was"
    assert session.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidRequest, match="already exists"):
        write_session(session)
    assert session.path.read_text() == session.text
