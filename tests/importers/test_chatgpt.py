"""Reading the export of ChatGPT."""

import json
from pathlib import Path

from infra.export_samples import (
    PNG,
    make_chatgpt_conversation,
    make_chatgpt_message,
    read_source,
    write_json,
    write_zip,
)
from quire.importers.chatgpt import ChatGptSource
from quire.model import ImagePart, ToolCallPart, ToolResultPart


def make_tree() -> dict[str, object]:
    """A question with two answers, of which the second is current."""
    return make_chatgpt_conversation(
        "c1",
        {
            "root": (None, None),
            "sys": ("root", make_chatgpt_message("system", "")),
            "q": ("sys", make_chatgpt_message("user", "What is a quire?")),
            "a1": ("q", make_chatgpt_message("assistant", "First answer")),
            "a2": ("q", make_chatgpt_message("assistant", "Second answer", metadata={"model_slug": "gpt-5"})),
            "q2": ("a2", make_chatgpt_message("user", "Thanks")),
        },
    )


def test_a_tree_is_read_with_the_current_branch_first(tmp_path: Path):
    read = read_source(ChatGptSource(), write_json(tmp_path / "conversations.json", [make_tree()]))
    assert read.errors == []
    assert read.only.outline() == [
        ("q", None, "user", "What is a quire?"),
        ("a2", "q", "assistant", "Second answer"),
        ("q2", "a2", "user", "Thanks"),
        ("a1", "q", "assistant", "First answer"),
    ]
    conversation = read.only.conversation
    assert (conversation.title, conversation.created_at) == ("Title of c1", 1_700_000_000_123_456)
    assert (conversation.origin.client, conversation.origin.session) == ("chatgpt", "c1")
    answer = read.only.messages[1]
    assert answer.at == 1_700_000_000_500_000
    assert answer.usage is not None
    assert (answer.usage.model, answer.usage.estimated) == ("gpt-5", True)


def test_all_conversation_files_of_an_archive_are_read(tmp_path: Path):
    """Large exports are split; other JSON files, and paths in names, mean nothing."""
    first, second = make_tree(), {**make_tree(), "conversation_id": "c2"}
    path = write_zip(
        tmp_path / "export.zip",
        {
            "../../conversations-000.json": [first],
            "nested/conversations-001.json": [second],
            "user.json": [{"id": "me"}],
            "shared_conversations.json": [{"id": "no"}],
        },
    )
    read = read_source(ChatGptSource(), path)
    assert [each.conversation.id for each in read.conversations] == ["c1", "c2"]
    assert read.errors == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_is_read_like_the_archive(tmp_path: Path):
    write_json(tmp_path / "conversations.json", [make_tree()])
    write_json(tmp_path / "user.json", [{"id": "me"}])
    assert len(read_source(ChatGptSource(), tmp_path).conversations) == 1


def test_tool_calls_and_their_results(tmp_path: Path):
    code = {"content_type": "code", "language": "python", "text": "print(1)"}
    output = {"content_type": "execution_output", "text": "1"}
    nodes = {
        "q": (None, make_chatgpt_message("user", "Run it")),
        "call": ("q", make_chatgpt_message("assistant", content=code, recipient="python")),
        "out": ("call", make_chatgpt_message("tool", content=output, author={"name": "python"})),
        "web": ("out", make_chatgpt_message("assistant", '{"query": "x"}', recipient="web.run")),
        "hit1": ("web", make_chatgpt_message("tool", "first")),
        "hit2": ("hit1", make_chatgpt_message("tool", "second")),
        "a": ("hit2", make_chatgpt_message("assistant", "Done", recipient="all")),
    }
    read = read_source(ChatGptSource(), write_json(tmp_path / "c.json", [make_chatgpt_conversation("c", nodes)]))
    assert [text for *_, text in read.only.outline()] == [
        "Run it", 'python({"input":"print(1)"})', "-> 1", 'web.run({"query": "x"})', "-> first", "-> second", "Done",
    ]  # fmt: skip
    results = [part for each in read.only.messages for part in each.message.parts if isinstance(part, ToolResultPart)]
    assert [result.call_id for result in results] == ["call", "web", "web"]
    calls = [part for each in read.only.messages for part in each.message.parts if isinstance(part, ToolCallPart)]
    assert [call.id for call in calls] == ["call", "web"]


def test_thinking_and_instructions(tmp_path: Path):
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "Plan", "content": "Look"}, {"summary": "Do"}]}
    recap = {"content_type": "reasoning_recap", "content": "Thought for 3s"}
    profile = {
        "content_type": "user_editable_context",
        "user_profile": "I bind books.",
        "user_instructions": "Be brief.",
    }
    nodes = {
        "ctx": (None, make_chatgpt_message("user", content=profile)),
        "t": ("ctx", make_chatgpt_message("assistant", content=thoughts)),
        "r": ("t", make_chatgpt_message("assistant", content=recap)),
    }
    read = read_source(ChatGptSource(), write_json(tmp_path / "c.json", [make_chatgpt_conversation("c", nodes)]))
    assert read.only.outline() == [
        ("ctx", None, "system", "I bind books.\n\nBe brief."),
        ("t", "ctx", "assistant", "<Plan\nLook> | <Do>"),
        ("r", "t", "assistant", "<Thought for 3s>"),
    ]


def test_images_are_read_from_the_archive_or_named_as_dropped(tmp_path: Path):
    pieces = [
        {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-AAA"},
        {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_bbb"},
        {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-GONE"},
        "What is it?",
    ]
    message = make_chatgpt_message(
        "user",
        content={"content_type": "multimodal_text", "parts": pieces},
        metadata={
            "attachments": [
                {"id": "file-AAA", "name": "a.png"},
                {"id": "file-PDF", "name": "b.pdf", "mime_type": "application/pdf"},
                {"id": "file-LOST", "name": "lost.docx"},
            ]
        },
    )
    conversation = make_chatgpt_conversation("c", {"m": (None, message)})
    path = write_zip(
        tmp_path / "e.zip",
        {
            "conversations.json": [conversation],
            "file-AAA-photo.png": PNG,
            "dalle-generations/file_bbb-sanitized.dat": PNG,
            "file-PDF-b.pdf": b"%PDF-1.4",
        },
    )
    read = read_source(ChatGptSource(), path)
    (message_read,) = read.only.messages
    assert [part.type for part in message_read.message.parts] == ["image", "image", "text", "file"]
    image = message_read.message.parts[0]
    assert isinstance(image, ImagePart)
    assert (image.media_type, image.width, image.height) == ("image/png", 1, 1)
    assert message_read.dropped == ("image_asset_pointer file-GONE", "attachment lost.docx")


def test_citations_and_unknown_content_are_stored_as_they_are(tmp_path: Path):
    citations = [{"start_ix": 0, "end_ix": 3}]
    nodes = {
        "a": (None, make_chatgpt_message("assistant", "See this", metadata={"citations": citations})),
        "b": ("a", make_chatgpt_message("assistant", content={"content_type": "hologram", "beam": 1})),
    }
    read = read_source(ChatGptSource(), write_json(tmp_path / "c.json", [make_chatgpt_conversation("c", nodes)]))
    first, second = read.only.messages
    assert first.message.provider_fields == {"chatgpt": {"citations": citations}}
    assert second.message.text == "[hologram]"
    assert second.message.parts[0].provider_fields == {"chatgpt": {"content_type": "hologram", "beam": 1}}


def test_a_tool_call_has_all_parts_of_its_message(tmp_path: Path):
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-AAA"}
    content = {"content_type": "multimodal_text", "parts": [image, {"content_type": "hologram"}, '{"q": 1}']}
    nodes = {"call": (None, make_chatgpt_message("assistant", content=content, recipient="edit"))}
    conversations = [make_chatgpt_conversation("c", nodes)]
    path = write_zip(tmp_path / "e.zip", {"conversations.json": conversations, "file-AAA.png": PNG})
    (message,) = read_source(ChatGptSource(), path).only.messages
    assert [part.type for part in message.message.parts] == ["image", "text", "tool_call"]


def test_old_conversations_are_skipped(tmp_path: Path):
    path = write_json(tmp_path / "conversations.json", [make_tree()])
    assert read_source(ChatGptSource(), path, since=1_700_000_101_000_000).conversations == []
    assert len(read_source(ChatGptSource(), path, since=1_700_000_099_000_000).conversations) == 1


def test_an_export_of_another_program_is_an_error_for_each_item(tmp_path: Path):
    read = read_source(
        ChatGptSource(), write_json(tmp_path / "conversations.json", [{"uuid": "x", "chat_messages": []}, make_tree()])
    )
    assert [each.conversation.id for each in read.conversations] == ["c1"]
    assert read.errors == [
        ("conversations.json:1", "The conversation cannot be read: it has no conversation_id or no mapping.")
    ]


def test_a_project_is_the_project_of_the_conversation(tmp_path: Path):
    conversations = [{**make_tree(), "gizmo_id": "g-p-123"}, {**make_tree(), "conversation_id": "d", "gizmo_id": "g-9"}]
    read = read_source(ChatGptSource(), write_json(tmp_path / "conversations.json", conversations))
    assert [each.conversation.origin.project for each in read.conversations] == ["g-p-123", None]


def test_reading_twice_gives_the_same(tmp_path: Path):
    path = write_json(tmp_path / "conversations.json", [make_tree()])
    assert json.dumps(read_source(ChatGptSource(), path).only.messages, default=str) == json.dumps(
        read_source(ChatGptSource(), path).only.messages, default=str
    )
