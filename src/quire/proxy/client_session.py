"""A client's session, from the headers in which known clients name it.

A session is a scope: the conversation of the user, those of sub-agents, and calls for titles share it.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from quire.log import ConversationOrigin
from quire.model.json_values import get_text, is_object
from quire.wire.codec import ClientRequest

ROOT_AGENT = "/root"
"""Codex's name of the agent that the user talks to."""
MAX_SEARCHED_MESSAGES = 3
"""Messages at the start of a list in which an agent describes its environment."""
MAX_SIDE_CALL_MESSAGES = 3
"""Messages of a call for a title and the like."""

_AGENT_HEADERS = ("x-claude-code-agent-id", "x-openai-subagent", "x-parent-session-id")
"""Headers that mark a sub-agent: its ID, its kind, or its parent."""
_PARENT_HEADERS = ("x-claude-code-parent-agent-id", "x-parent-session-id")
_TURN_HEADER = "x-codex-turn-metadata"
_PROJECT = re.compile(r"(?:Primary working directory: |<cwd>)([^\n<]{1,500})")
"""The working directory, as Claude Code and Codex describe it to the model."""


def find_origin(
    headers: Mapping[str, str], request: ClientRequest, *, session_headers: Mapping[str, str]
) -> ConversationOrigin | None:
    """Finds the client's session by the first header of `session_headers` that the request has."""
    found = find_session(headers, session_headers)
    if found is None:
        return None
    client, session = found
    turn = _read_turn_metadata(headers)
    agent = next((headers[name] for name in _AGENT_HEADERS if name in headers), None) or _get_codex_agent(turn)
    return ConversationOrigin(
        client=client,
        session=session,
        project=_find_project(request),
        agent=agent,
        parent_agent=next((headers[name] for name in _PARENT_HEADERS if name in headers), None),
        purpose=_find_purpose(request, agent),
    )


def find_session(headers: Mapping[str, str], session_headers: Mapping[str, str]) -> tuple[str, str] | None:
    """The client's name and its session."""
    return next(
        ((client, headers[name]) for name, client in session_headers.items() if client and name in headers), None
    )


def _find_purpose(request: ClientRequest, agent: str | None) -> str | None:
    """Agents offer tools in every request of a user's conversation, and none in calls for titles and the like."""
    if agent is not None:
        return "subagent"
    return None if request.tools or len(request.messages) > MAX_SIDE_CALL_MESSAGES else "side"


def _read_turn_metadata(headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        metadata = from_json(headers.get(_TURN_HEADER, "{}"))
    except ValueError:
        return {}
    return metadata if is_object(metadata) else {}


def _get_codex_agent(turn: Mapping[str, Any]) -> str | None:
    agent = get_text(turn, "agent_name")
    return agent if agent != ROOT_AGENT else None


def _find_project(request: ClientRequest) -> str | None:
    for each in request.messages[:MAX_SEARCHED_MESSAGES]:
        if match := _PROJECT.search(each.message.text):
            return match[1].strip()
    return None
