"""Reading JSON Lines of OpenAI's chat format."""

import json
from pathlib import Path
from typing import Any

from infra.export_samples import read_source
from quire.importers.openai_jsonl import OpenAiJsonlSource

SOURCE = OpenAiJsonlSource()
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "w", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "rain"},
    {"role": "assistant", "content": "Rain."},
]


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_every_line_is_a_conversation(tmp_path: Path):
    path = write_lines(tmp_path / "train.jsonl", {"messages": MESSAGES, "tools": [{}]}, {"messages": MESSAGES[:2]})
    read = read_source(SOURCE, path)
    assert read.errors == []
    assert read.conversations[0].outline() == [
        ("message:0", None, "system", "Be brief."),
        ("message:1", "message:0", "user", "Weather?"),
        ("message:2", "message:1", "assistant", "w({})"),
        ("message:3", "message:2", "tool", "-> rain"),
        ("message:4", "message:3", "assistant", "Rain."),
    ]
    assert read.conversations[0].conversation.dropped == ("tools",)
    assert len(read.conversations[1].messages) == 2


def test_the_id_is_that_of_the_content(tmp_path: Path):
    first = read_source(SOURCE, write_lines(tmp_path / "a.jsonl", {"messages": MESSAGES}))
    moved = read_source(SOURCE, write_lines(tmp_path / "b.jsonl", {"messages": MESSAGES[:1]}, {"messages": MESSAGES}))
    assert moved.conversations[1].conversation.id == first.only.conversation.id
    assert moved.conversations[0].conversation.id != first.only.conversation.id


def test_requests_and_responses_of_the_batch_api(tmp_path: Path):
    request = {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": MESSAGES[:2]},
    }
    body = {
        "model": "gpt-4o-2026",
        "created": 1_700_000_000,
        "choices": [{"message": {"role": "assistant", "content": "Rain."}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
    response = {"id": "b", "custom_id": "one", "response": {"status_code": 200, "body": body}, "error": None}
    asked, answered = read_source(SOURCE, write_lines(tmp_path / "batch.jsonl", request, response)).conversations
    assert [text for *_, text in asked.outline()] == ["Be brief.", "Weather?"]
    (message,) = answered.messages
    assert (message.message.text, message.at) == ("Rain.", 1_700_000_000_000_000)
    assert message.usage is not None
    assert (message.usage.model, message.usage.input_tokens, message.usage.output_tokens) == ("gpt-4o-2026", 5, 2)
    assert {asked.conversation.title, answered.conversation.title} == {"one"}


def test_lines_that_cannot_be_read_are_errors_of_their_own(tmp_path: Path):
    path = write_lines(
        tmp_path / "x.jsonl",
        "not json",
        {"prompt": "p"},
        {"messages": [{"role": "wizard"}]},
        {"messages": MESSAGES[:1]},
    )
    read = read_source(SOURCE, path)
    assert [error.item for error in read.errors] == ["x.jsonl:1", "x.jsonl:2", "x.jsonl:3"]
    assert len(read.conversations) == 1
