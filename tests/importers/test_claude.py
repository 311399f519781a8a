"""Reading the export of Claude.ai."""

from pathlib import Path
from typing import Any

from infra.export_samples import PNG, read_source, write_json, write_zip
from quire.importers.claude import ROOT_PARENT, ClaudeSource
from quire.model import ToolResultPart

FILE_ID = "11111111-2222-4333-8444-555555555555"


def make_message(
    id_: str, sender: str, text: str = "", *, parent: str | None = ROOT_PARENT, **fields: Any
) -> dict[str, Any]:
    return {
        "uuid": id_,
        "sender": sender,
        "text": text,
        "content": [{"type": "text", "text": text, "citations": []}] if text else [],
        "created_at": "2026-03-01T10:00:00.123456Z",
        "attachments": [],
        "files": [],
        **({"parent_message_uuid": parent} if parent else {}),
        **fields,
    }


def make_conversation(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "uuid": "conv",
        "name": "Binding",
        "created_at": "2026-03-01T09:00:00Z",
        "updated_at": "2026-03-02T09:00:00Z",
        "account": {"uuid": "me"},
        "chat_messages": list(messages),
        **fields,
    }


def test_branches_are_rebuilt_and_the_last_message_is_current(tmp_path: Path):
    conversation = make_conversation(
        make_message("q", "human", "Hello"),
        make_message("a1", "assistant", "Hi", parent="q"),
        make_message("a2", "assistant", "Hello!", parent="q"),
    )
    read = read_source(ClaudeSource(), write_json(tmp_path / "conversations.json", [conversation]))
    assert read.errors == []
    assert read.only.outline() == [
        ("q", None, "user", "Hello"),
        ("a2", "q", "assistant", "Hello!"),
        ("a1", "q", "assistant", "Hi"),
    ]
    assert read.only.messages[0].at == 1_772_359_200_123_456
    assert (read.only.conversation.title, read.only.conversation.origin.client) == ("Binding", "claude")


def test_an_export_without_parents_is_a_list(tmp_path: Path):
    messages = [make_message(str(n), "human", f"Line {n}", parent=None) for n in range(3)]
    read = read_source(ClaudeSource(), write_json(tmp_path / "conversations.json", [make_conversation(*messages)]))
    assert [(each.id, each.parent) for each in read.only.messages] == [("0", None), ("1", "0"), ("2", "1")]


def test_a_reply_with_tools_becomes_several_messages(tmp_path: Path):
    content = [
        {"type": "thinking", "thinking": "Search first."},
        {"type": "tool_use", "name": "web_search", "input": {"query": "quire"}},
        {"type": "tool_result", "name": "web_search", "content": [{"type": "text", "text": "25 sheets"}]},
        {"type": "tool_use", "id": "toolu_2", "name": "fetch", "input": {}},
        {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True, "content": "404"},
        {"type": "text", "text": "A quire has 25 sheets."},
        {"type": "token_budget"},
        {"type": "hologram"},
    ]
    conversation = make_conversation(make_message("a", "assistant", content=content, text="fallback"))
    read = read_source(ClaudeSource(), write_json(tmp_path / "conversations.json", [conversation]))
    assert read.only.outline() == [
        ("a", None, "assistant", '<Search first.> | web_search({"query":"quire"})'),
        ("a#2", "a", "tool", "-> 25 sheets"),
        ("a#3", "a#2", "assistant", "fetch({})"),
        ("a#4", "a#3", "tool", "-> 404"),
        ("a#5", "a#4", "assistant", "A quire has 25 sheets."),
    ]
    results = [part for each in read.only.messages for part in each.message.parts if isinstance(part, ToolResultPart)]
    assert [(result.call_id, result.is_error) for result in results] == [("a:1", False), ("toolu_2", True)]
    assert read.only.messages[0].dropped == ("block hologram",)


def test_children_of_a_reply_with_tools_follow_its_last_message(tmp_path: Path):
    content = [{"type": "tool_use", "id": "t", "name": "x", "input": {}}, {"type": "text", "text": "Done"}]
    conversation = make_conversation(
        make_message("a", "assistant", content=[content[0], {"type": "tool_result", "tool_use_id": "t"}, content[1]]),
        make_message("q", "human", "Next", parent="a"),
    )
    read = read_source(ClaudeSource(), write_json(tmp_path / "conversations.json", [conversation]))
    assert read.only.outline()[-1] == ("q", "a#3", "user", "Next")


def test_the_text_is_the_fallback_for_empty_content(tmp_path: Path):
    message = make_message("q", "human", "Plain", content=[])
    read = read_source(ClaudeSource(), write_json(tmp_path / "conversations.json", [make_conversation(message)]))
    assert read.only.outline() == [("q", None, "user", "Plain")]


def test_attachments_and_files(tmp_path: Path):
    message = make_message(
        "q",
        "human",
        "See the notes",
        attachments=[{"file_name": "notes.txt", "extracted_content": "Fold twice."}, {"file_name": "empty.txt"}],
        files=[{"file_name": "lost.png"}, {"file_name": "dot.png", "file_uuid": FILE_ID}],
    )
    path = write_zip(
        tmp_path / "data.zip",
        {"conversations.json": [make_conversation(message)], f"attachments/{FILE_ID}.png": PNG},
    )
    (read,) = read_source(ClaudeSource(), path).only.messages
    assert [part.type for part in read.message.parts] == ["text", "image", "text"]
    assert "Fold twice." in read.message.text
    assert 'name="notes.txt"' in read.message.text
    assert read.dropped == ("attachment empty.txt", "file lost.png")


def test_a_message_of_attachments_alone_has_a_place_in_the_tree(tmp_path: Path):
    conversation = make_conversation(
        make_message("q", "human", files=[{"file_name": "a.png"}]), make_message("a", "assistant", "Nice", parent="q")
    )
    read = read_source(ClaudeSource(), write_json(tmp_path / "conversations.json", [conversation]))
    assert read.only.outline() == [("q", None, "user", "[not in the export]"), ("a", "q", "assistant", "Nice")]
    assert read.only.messages[0].dropped == ("file a.png",)


def test_old_conversations_are_skipped(tmp_path: Path):
    path = write_json(tmp_path / "conversations.json", [make_conversation(make_message("q", "human", "Hello"))])
    assert read_source(ClaudeSource(), path, since=1_772_442_001_000_000).conversations == []
    assert len(read_source(ClaudeSource(), path, since=1_772_441_000_000_000).conversations) == 1
