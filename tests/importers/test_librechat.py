"""Reading conversations that LibreChat exported."""

from pathlib import Path
from typing import Any

import pytest

from infra.export_samples import read_source, write_json
from quire.importers.librechat import ROOT_PARENT, LibreChatSource
from quire.importers.readers import MAX_VALUE_DEPTH


def make_message(
    id_: str, text: str, *, is_user: bool, parent: str = ROOT_PARENT, second: int = 0, **fields: Any
) -> dict[str, Any]:
    return {
        "messageId": id_,
        "parentMessageId": parent,
        "text": text,
        "sender": "User" if is_user else "GPT-4o",
        "isCreatedByUser": is_user,
        "model": None if is_user else "gpt-4o",
        "createdAt": f"2026-02-03T04:05:{second:02}.000Z",
        **fields,
    }


MESSAGES = [
    make_message("q", "Hello", is_user=True),
    make_message("a1", "Hi", is_user=False, parent="q", second=1, tokenCount=7),
    make_message("a2", "Hello!", is_user=False, parent="q", second=2),
]
OUTLINE = [
    ("q", None, "user", "Hello"),
    ("a2", "q", "assistant", "Hello!"),
    ("a1", "q", "assistant", "Hi"),
]


def make_conversation(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"conversationId": "conv", "endpoint": "openAI", "title": "Greeting", "messages": messages, **fields}


@pytest.mark.parametrize(
    "conversation",
    [
        make_conversation(MESSAGES),
        make_conversation([{**MESSAGES[0], "children": MESSAGES[1:]}], recursive=True),
        {**make_conversation([]), "messages": None, "messagesTree": [{**MESSAGES[0], "children": MESSAGES[1:]}]},
    ],
    ids=["list", "recursive", "messagesTree"],
)
def test_lists_and_trees_give_the_same_messages(tmp_path: Path, conversation: dict[str, Any]):
    read = read_source(LibreChatSource(), write_json(tmp_path / "greeting.json", conversation))
    assert read.errors == []
    assert read.only.outline() == OUTLINE
    usage = read.only.messages[2].usage
    assert usage is not None
    assert (usage.model, usage.output_tokens) == ("gpt-4o", 7)
    assert read.only.messages[1].at == 1_770_091_502_000_000


def test_content_blocks(tmp_path: Path):
    content = [
        {"type": "think", "think": "Look it up"},
        {"type": "tool_call", "tool_call": {"id": "c1", "name": "search", "args": '{"q": 1}', "output": "found"}},
        {"type": "text", "text": {"value": "Old form"}},
        {"type": "agent_update", "agent_update": {}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "/images/on-the-server.png"}},
    ]
    message = make_message(
        "a", "", is_user=False, content=content, files=[{"filename": "b.pdf", "filepath": "/uploads/b.pdf"}]
    )
    read = read_source(LibreChatSource(), write_json(tmp_path / "c.json", make_conversation([message])))
    assert read.only.outline() == [
        ("a", None, "assistant", '<Look it up> | search({"q": 1})'),
        ("a#2", "a", "tool", "-> found"),
        ("a#3", "a#2", "assistant", "Old form | [image]"),
    ]
    assert read.only.messages[0].dropped == ("file b.pdf", "block agent_update", "image_url")


@pytest.mark.parametrize(
    ("levels", "is_read"), [(MAX_VALUE_DEPTH // 2 - 2, True), (MAX_VALUE_DEPTH, False), (200_000, False)]
)
def test_a_deep_tree_is_read_up_to_the_limit(tmp_path: Path, levels: int, is_read: bool):
    opening = "".join(
        f'{{"messageId":"m{n}","text":"Line {n}","isCreatedByUser":true,"children":[' for n in range(levels)
    )
    text = f'{{"conversationId":"deep","recursive":true,"messages":[{opening}{"]}" * levels}]}}'
    path = tmp_path / "deep.json"
    path.write_text(text)
    read = read_source(LibreChatSource(), path)
    if is_read:
        assert len(read.only.messages) == levels
        assert read.only.messages[-1].parent == f"m{levels - 2}"
    else:
        assert read.conversations == []
        assert read.errors == [("deep.json:1", f"The item is nested more than {MAX_VALUE_DEPTH} levels deep.")]
