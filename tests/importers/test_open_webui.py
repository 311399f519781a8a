"""Reading chats that Open WebUI exported."""

import json
from pathlib import Path
from typing import Any

from infra.export_samples import read_source, write_json
from quire.importers.open_webui import OpenWebUiSource


def make_message(id_: str, parent: str | None, role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "parentId": parent,
        "childrenIds": [],
        "role": role,
        "content": content,
        "timestamp": 1_750_000_000,
        **fields,
    }


def make_chat(*messages: dict[str, Any], current: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": "chat",
        "user_id": "me",
        "title": "Folding",
        "chat": {
            "title": "Folding",
            "models": ["m"],
            "history": {"currentId": current, "messages": {each["id"]: each for each in messages}},
        },
        "created_at": 1_750_000_000,
        "updated_at": 1_750_000_100,
        "meta": {},
        "pinned": False,
        **fields,
    }


TREE = make_chat(
    make_message("q", None, "user", "How?"),
    make_message(
        "a1",
        "q",
        "assistant",
        "Fold",
        model="m1",
        usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
    ),
    make_message("a2", "q", "assistant", "Cut", model="m2", info={"prompt_eval_count": 8, "eval_count": 3}),
    current="a1",
)


def test_a_tree_is_read_with_the_current_branch_first(tmp_path: Path):
    read = read_source(OpenWebUiSource(), write_json(tmp_path / "chats.json", [TREE]))
    assert read.errors == []
    assert read.only.outline() == [
        ("q", None, "user", "How?"),
        ("a1", "q", "assistant", "Fold"),
        ("a2", "q", "assistant", "Cut"),
    ]
    usages = [each.usage for each in read.only.messages[1:]]
    assert [(u.model, u.input_tokens, u.output_tokens, u.cache_read_tokens) for u in usages if u] == [
        ("m1", 9, 2, 4),
        ("m2", 8, 3, 0),
    ]
    assert read.only.messages[0].at == 1_750_000_000_000_000


def test_one_chat_a_line_is_read_too(tmp_path: Path):
    path = tmp_path / "chats.ndjson"
    path.write_text("\n".join(json.dumps({**TREE, "id": f"chat{n}"}) for n in range(3)))
    assert [each.conversation.id for each in read_source(OpenWebUiSource(), path).conversations] == [
        "chat0",
        "chat1",
        "chat2",
    ]


def test_details_in_the_text_are_thinking_and_tool_calls(tmp_path: Path):
    content = (
        '<details type="reasoning" done="true" duration="2">\n<summary>Thought for 2 seconds</summary>\n'
        "&gt; step &lt;one&gt;\n&gt; step two\n</details>\n"
        '<details type="tool_calls" done="true" id="call_1" name="web_search" '
        'arguments="{&quot;q&quot;: &quot;x&quot;}" '
        'result="&quot;ok&quot;">\n<summary>Tool Executed</summary>\n</details>\nFinal answer\n'
        "<details open>\n<summary>The user's own</summary>\nHTML</details>"
    )
    read = read_source(
        OpenWebUiSource(), write_json(tmp_path / "c.json", [make_chat(make_message("a", None, "assistant", content))])
    )
    assert read.only.outline() == [
        ("a", None, "assistant", '<step <one>\nstep two> | web_search({"q": "x"})'),
        ("a#2", "a", "tool", '-> "ok"'),
        ("a#3", "a#2", "assistant", "Final answer | <details open>\n<summary>The user's own</summary>\nHTML</details>"),
    ]


def test_details_that_never_end_are_text(tmp_path: Path):
    content = '<details type="reasoning">' * 3
    read = read_source(
        OpenWebUiSource(), write_json(tmp_path / "c.json", [make_chat(make_message("a", None, "assistant", content))])
    )
    assert read.only.messages[0].message.text == content


def test_output_items_are_read_instead_of_the_text(tmp_path: Path):
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hmm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One"}]},
    ]
    message = make_message("a", None, "assistant", "<details>One", output=output)
    read = read_source(OpenWebUiSource(), write_json(tmp_path / "c.json", [make_chat(message)]))
    assert [(role, text) for _, _, role, text in read.only.outline()] == [
        ("assistant", "<Hmm> | f({})"),
        ("tool", "-> 1"),
        ("assistant", "One"),
    ]


def test_files(tmp_path: Path):
    files = [
        {"type": "image", "url": "data:image/png;base64,AAAA"},
        {"type": "file", "name": "notes.md", "file": {"data": {"content": "Fold twice."}}},
        {"type": "file", "name": "lost.pdf"},
        {"type": "image", "url": "/api/v1/files/1/content", "name": "server.png"},
    ]
    read = read_source(
        OpenWebUiSource(),
        write_json(tmp_path / "c.json", [make_chat(make_message("q", None, "user", "See", files=files))]),
    )
    (message,) = read.only.messages
    assert [part.type for part in message.message.parts] == ["image", "text", "text"]
    assert "Fold twice." in message.message.text
    assert message.dropped == ("file lost.pdf", "file server.png")


def test_the_system_prompt_of_a_chat_is_its_first_message(tmp_path: Path):
    chat = make_chat(make_message("q", None, "user", "How?"))
    chat["chat"]["system"] = "Be brief."
    read = read_source(OpenWebUiSource(), write_json(tmp_path / "c.json", [chat]))
    assert read.only.outline() == [("system", None, "system", "Be brief."), ("q", "system", "user", "How?")]


def test_a_chat_without_a_tree_is_a_list(tmp_path: Path):
    chat = {
        "id": "old",
        "title": "Old",
        "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    }
    read = read_source(OpenWebUiSource(), write_json(tmp_path / "c.json", [chat]))
    assert read.only.outline() == [("message:0", None, "user", "a"), ("message:1", "message:0", "assistant", "b")]
