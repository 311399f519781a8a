"""Reading transcripts of Cursor's agent."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.export_samples import read_source
from quire.importers.cursor import CursorSource

SOURCE = CursorSource()
LINES: list[dict[str, Any]] = [
    {
        "role": "user",
        "message": {"content": [{"type": "text", "text": "<user_query>\nFix the bug\n</user_query>"}]},
        "timestamp": "2026-04-05T06:07:08Z",
    },
    {"role": "user", "isMeta": True, "message": {"content": "internal"}},
    {
        "role": "assistant",
        "timestamp_ms": 1_775_369_230_000,
        "message": {
            "content": [
                {"type": "thinking", "thinking": "Look"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "name": "Read", "input": {"path": "a.py"}},
            ]
        },
    },
    {"role": "user", "message": {"content": [{"type": "tool_result", "content": [{"type": "text", "text": "x = 1"}]}]}},
    {"role": "assistant", "message": {"content": "Done"}},
]


def write_transcript(home: Path, name: str = "abc.jsonl", lines: list[dict[str, Any]] = LINES) -> Path:
    path = home / ".cursor/projects/home-me-quire/agent-transcripts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (1_775_400_000, 1_775_400_000))
    return path


def test_a_transcript_is_a_list_of_messages(tmp_path: Path):
    read = read_source(SOURCE, write_transcript(tmp_path))
    assert read.errors == []
    assert read.only.outline() == [
        ("line:1", None, "user", "Fix the bug"),
        ("line:3", "line:1", "assistant", '<Look> | I look. | Read({"path":"a.py"})'),
        ("line:4", "line:3", "tool", "-> x = 1"),
        ("line:5", "line:4", "assistant", "Done"),
    ]
    assert [each.at for each in read.only.messages][:2] == [1_775_369_228_000_000, 1_775_369_230_000_000]
    origin = read.only.conversation.origin
    assert (origin.client, origin.session, origin.project) == ("cursor", "abc", "home-me-quire")


def test_a_result_answers_the_call_before_it(tmp_path: Path):
    messages = read_source(SOURCE, write_transcript(tmp_path)).only.messages
    assert messages[2].message.tool_results[0].call_id == messages[1].message.tool_calls[0].id


def test_the_usual_place_is_found(tmp_path: Path):
    path = write_transcript(tmp_path)
    write_transcript(tmp_path, "sub/agent.jsonl")
    write_transcript(tmp_path, "abc/subagents/worker.jsonl")
    (tmp_path / ".cursor/projects/home-me-quire/other.jsonl").write_text("{}")
    (root,) = SOURCE.find_default_paths({"HOME": str(tmp_path)})
    assert list(SOURCE.find_files(root)) == [path, path.parent / "sub/agent.jsonl"]
    assert SOURCE.find_default_paths({"HOME": str(tmp_path / "nowhere")}) == []


def test_a_file_that_did_not_change_since_is_skipped(tmp_path: Path):
    path = write_transcript(tmp_path)
    assert read_source(SOURCE, path, since=1_775_400_001_000_000).conversations == []
    assert len(read_source(SOURCE, path, since=1_775_399_999_000_000).conversations) == 1


def test_a_file_that_has_grown_has_the_same_messages_first(tmp_path: Path):
    path = write_transcript(tmp_path, lines=LINES[:3])
    before = read_source(SOURCE, path).only.messages
    write_transcript(tmp_path)
    assert read_source(SOURCE, path).only.messages[: len(before)] == before


def test_a_prompt_is_what_the_user_wrote_and_has_its_time(tmp_path: Path):
    def make_prompt(*texts: str) -> dict[str, Any]:
        return {"role": "user", "message": {"content": [{"type": "text", "text": "\n".join(texts)}]}}

    query = "<user_query>\nFix the bug\n</user_query>"
    lines = [
        make_prompt("<timestamp>Friday, Sep 4, 2026, 2:21 AM (UTC+8)</timestamp>", query),
        {"role": "assistant", "message": {"content": [{"type": "text", "text": "Fixed."}]}},
        {"type": "turn_ended", "status": "success"},
        make_prompt("[Image]", "<timestamp>Friday, Sep 4, 2026, 12:05 PM (UTC-4:30)</timestamp>", query),
        make_prompt("<timestamp>Someday</timestamp>", query),
    ]
    messages = read_source(SOURCE, write_transcript(tmp_path, lines=lines)).only.messages
    assert [[part.text for part in each.message.parts if part.type == "text"] for each in messages] == [
        ["Fix the bug"],
        ["Fixed."],
        ["Fix the bug", "[Image]"],
        ["Fix the bug", "<timestamp>Someday</timestamp>"],
    ]
    first, second = datetime(2026, 9, 3, 18, 21, tzinfo=UTC), datetime(2026, 9, 4, 16, 35, tzinfo=UTC)
    assert [each.at for each in messages] == [
        round(each.timestamp() * 1_000_000) for each in (first, first, second, second)
    ]
