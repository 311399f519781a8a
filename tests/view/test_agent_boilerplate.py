"""What coding agents add to messages is removed, and nothing that a user or a model said."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.model import Message, TextPart
from quire.rows.boilerplate import BLOCKS
from quire.wire.agent_boilerplate import remove_boilerplate

REMINDER = "<system-reminder>\nBe kind.\n</system-reminder>\n"
COMMAND = (
    "<command-name>/{name}</command-name>\n  <command-message>{name}</command-message>\n"
    "<command-args>{args}</command-args>"
)
NOTIFICATION = (
    "<system-reminder>\n[SYSTEM NOTIFICATION - NOT USER INPUT]\n<task-notification>\n<status>completed</status>\n"
    "<result>44 sacks.</result>\n</task-notification>\n</system-reminder>"
)
PAGE_LIST = Path(__file__).parents[2] / "web" / "src" / "lib" / "contextBlocks.ts"


def spoken(message: Message, *, agent: str | None = None) -> list[str]:
    parts = remove_boilerplate(message, agent=agent).parts
    return [part.text for part in parts if isinstance(part, TextPart)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (REMINDER, []),
        (f"{REMINDER}{REMINDER}Why do mills turn?", ["Why do mills turn?"]),
        ("What is a <system-reminder>?", ["What is a <system-reminder>?"]),
        ("<system-reminder> is a tag, isn't it?", ["<system-reminder> is a tag, isn't it?"]),
        (f"See: {REMINDER}", [f"See: {REMINDER}"]),
        (COMMAND.format(name="compact", args=""), []),
        (COMMAND.format(name="review", args="the auth module"), ["/review the auth module"]),
        (NOTIFICATION, ["44 sacks."]),
        (
            "<system-reminder>\nThe user sent a new message while you were working:\nUse oak.\n\nIMPORTANT: Go on."
            "</system-reminder>",
            ["Use oak."],
        ),
        (
            "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nAdditional Instructions:\nKeep the ports.\n\n"
            "REMINDER: Do NOT call any tools. Respond with plain text only.",
            ["Keep the ports."],
        ),
        ("Base directory for this skill: /mill/flour\n\nGrade it.\n\nARGUMENTS: batch 9", ["batch 9"]),
        (
            "<system-reminder>\nResult of calling the Read tool:\n1\tPORT = 7421\n</system-reminder>\n\nLook at it.",
            ["Look at it.", "1\tPORT = 7421"],
        ),
    ],
)
def test_blocks_are_removed_and_words_in_them_stay(text: str, words: list[str]):
    assert spoken(Message.user(text)) == words


def test_a_tool_result_loses_reminders_at_both_ends():
    message = remove_boilerplate(Message.tool("c", f"{REMINDER}{REMINDER} 42\n{REMINDER}\n"))
    assert message.tool_results[0].text == "42"
    assert remove_boilerplate(Message.tool("c", f"a {REMINDER} b")).tool_results[0].text == f"a {REMINDER} b"


def test_system_messages_of_a_known_agent_are_all_its_own():
    message = Message.system("Answer in German.")
    assert remove_boilerplate(message) is message
    assert remove_boilerplate(message, agent="open-webui") is message
    assert remove_boilerplate(message, agent="codex").parts == ()


@given(st.text(), st.sampled_from(["user", "tool", "assistant"]))
def test_other_texts_stay_as_they_are(text: str, role: str):
    message = Message.tool("c", text) if role == "tool" else Message.model_validate({
        "role": role, "parts": [{"type": "text", "text": f"I say: {text}"}]
    })  # fmt: skip
    assert remove_boilerplate(message) is message


@given(
    st.lists(st.sampled_from([REMINDER, NOTIFICATION, COMMAND.format(name="a", args="b"), "<system-reminder>", "x"]))
)
def test_removing_twice_removes_no_more(pieces: list[str]):
    once = remove_boilerplate(Message.user("".join(pieces)))
    assert remove_boilerplate(once) == once


def test_the_page_folds_the_same_tags():
    [listed] = re.findall(r"<\(([a-z_|-]+)\)>", PAGE_LIST.read_text())
    tags = {
        block.start[1:-1]
        for blocks in BLOCKS.values()
        for block in blocks
        if block.role == "user" and re.fullmatch(r"<[a-z_-]+>", block.start)
    }
    assert set(listed.split("|")) == tags | {"command-name", "command-message", "command-args"}
