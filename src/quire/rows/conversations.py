"""Rows of conversations: tags and default titles.

A default title is the first words of a conversation's first question, without what an agent puts before it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quire.rows.boilerplate import is_client_text, strip_text

TAGS_KEY = "quire_tags"
"""Key of the tags in a conversation's metadata. It comes last there, so that LIKE can search in the tags alone."""

CONTINUED_KEY = "quire_continued"
"""Key in the metadata of an agent's conversation that was continued in Quire, with an empty value."""
OWN_KEYS = (CONTINUED_KEY, TAGS_KEY)
"""Keys of the metadata that are not a client's."""

MAX_TITLE_CHARS = 80
"""Maximum length of a default title."""

MAX_TITLE_MESSAGES = 12
"""Maximum number of user messages that are searched for the first question."""

MAX_TITLE_SEQ = 40
"""Last entry that is searched for the first question; before it come the agent's and the client's instructions."""

_MAX_TAG_SEARCH_CHARS = 4_000
_TAG = re.compile(r"</?[a-z][\w-]{0,60}>")
_COMMAND_NAME = re.compile(r"<command-name>([^<]{1,200})</command-name>")
_PLAN = re.compile(r"\s*Implement the following plan:\s*#+ (?:Plan: )?([^\n]+)")
"""What Claude Code sends when a person approves a plan, up to the plan's heading."""


def parse_tags(metadata: str | None) -> tuple[str, ...]:
    joined: str = json.loads(metadata).get(TAGS_KEY, "") if metadata else ""
    return tuple(filter(None, joined.split(",")))


def find_titles(
    untitled: Sequence[str], read_messages: Callable[[Sequence[str], int], Iterable[tuple[str, str | None]]]
) -> dict[str, str]:
    """Default titles of these conversations.

    `read_messages` reads one user message of each conversation as JSON, by its position. The next ones are read only
    where a message has nothing but an agent's context.
    """
    titles: dict[str, str] = {}
    for position in range(MAX_TITLE_MESSAGES):
        if not untitled:
            break
        found = [(name, extract_question(json.loads(body))) for name, body in read_messages(untitled, position) if body]
        untitled = list[str]()
        for name, (text, question) in found:
            # The fallback of a conversation without a question is the first command or text of the agent.
            titles[name] = build_title(question) or titles.get(name) or build_title(_read_fallback(text))
            if text and not question.strip():
                untitled.append(name)
    return titles


def extract_question(message: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a user's message as it is, and without what an agent added to it."""
    whole: list[str] = []
    own: list[str] = []
    words: list[str] = []
    for part in message["parts"]:
        if part["type"] == "text":
            whole.append(part["text"])
            if not is_client_text(part.get("provider_fields")):
                own.append(strip_text(part["text"], message["role"], words))
        elif part["type"] == "tool_result":
            for each in part["content"]:
                if each["type"] == "text":
                    strip_text(each["text"], "tool", words)
    return "".join(whole), "\n".join(text for text in (*own, *words) if text)


def _read_fallback(text: str) -> str:
    command = _COMMAND_NAME.search(text[:_MAX_TAG_SEARCH_CHARS])
    return command[1] if command else _TAG.sub(" ", text[:_MAX_TAG_SEARCH_CHARS])


def build_title(text: str) -> str:
    """As many whole words as fit in `MAX_TITLE_CHARS`, on one line. Of a plan that is carried out, its heading."""
    if plan := _PLAN.match(text):
        text = plan[1]
    line = " ".join(text[: 4 * MAX_TITLE_CHARS].split())
    if len(line) <= MAX_TITLE_CHARS:
        return line
    words, _, _ = line[:MAX_TITLE_CHARS].rpartition(" ")
    return f"{words if 2 * len(words) > MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1]}…"
