"""Where a request comes from: the client, its session, the project, and the agent in the session.

Known clients name their session in headers. It is a scope: the user's conversation, the conversations of sub-agents,
and calls for titles share it.
"""

import re
from collections.abc import Mapping

from pydantic_core import from_json

from quire.log import ConversationOrigin
from quire.model import TextPart
from quire.model.json_values import filter_objects, get_text, is_object
from quire.rows.boilerplate import GEMINI_CLI, SESSION_CONTEXT_OPENING
from quire.wire.codec import ClientRequest

_USER_THREAD = "user"
"""What began a thread of Codex that is the user's."""
ROOT_AGENT = "/root"
"""Codex's name of the agent that the user talks to."""
MAX_SEARCHED_MESSAGES = 6
"""Messages at the start of a list in which an agent may describe its environment, if its instructions do not."""
MAX_SIDE_CALL_MESSAGES = 3
"""Messages of a call for a title and the like."""

_AGENT_HEADERS = ("x-claude-code-agent-id", "x-openai-subagent", "x-parent-session-id")
"""Headers that mark a sub-agent: its ID, its kind, or its parent."""
_CODEX_PARENT_HEADER = "x-codex-parent-thread-id"
"""Thread that started this one: a sub-agent of Codex is a thread in the session of the user's."""
_PARENT_HEADERS = ("x-claude-code-parent-agent-id", "x-parent-session-id", _CODEX_PARENT_HEADER)
_TURN_HEADER = "x-codex-turn-metadata"
_PROJECT_LABELS = (
    "Primary working directory: ", "<cwd>", "<env>\n  Working directory: ", "- **Workspace Directories:**\n  - ",
)  # fmt: skip
"""Texts before the working directory, as Claude Code, Codex, opencode and Gemini CLI describe it to the model."""
PROJECT_SESSION_PREFIX = "project:"
"""Start of a session ID that all sessions of a project share, because the client does not tell them apart."""
_GEMINI_USER_AGENTS = ("GeminiCLI", "proxy_client=geminicli")
_GEMINI_FOLDER = re.compile(r"The project's temporary directory is: ([^\n]{1,500})")
_PROJECT = re.compile(r"[^\n<]{1,500}")


def find_origin(
    headers: Mapping[str, str], request: ClientRequest, *, session_headers: Mapping[str, str]
) -> ConversationOrigin | None:
    """Finds the client's session by the first header of `session_headers` that the request has."""
    found = find_session(headers, session_headers) or _find_gemini_project(headers, request)
    if found is None:
        return None
    client, session = found
    agent = next((headers[name] for name in _AGENT_HEADERS if name in headers), None)
    if _CODEX_PARENT_HEADER in headers:
        agent = headers.get("thread-id", agent)
    try:
        turn = from_json(headers.get(_TURN_HEADER, "{}"))
    except ValueError:
        turn = None
    turn = turn if is_object(turn) else {}
    if not agent:
        codex_agent = get_text(turn, "agent_name")
        agent = codex_agent if codex_agent != ROOT_AGENT else None
    purpose = None
    if agent is not None:
        purpose = "subagent"
    elif not request.tools and (
        client == GEMINI_CLI
        or len(request.messages) <= MAX_SIDE_CALL_MESSAGES
        or get_text(turn, "thread_source") not in (None, _USER_THREAD)
    ):
        # Agents offer tools in every request of a user's conversation, and none in calls for titles and the like. Codex
        # names a title only by what began its thread, which is a session of its own.
        purpose = "side"
    return ConversationOrigin(
        client=client,
        session=session,
        project=_find_project(request),
        agent=agent,
        parent_agent=next((headers[name] for name in _PARENT_HEADERS if name in headers), None),
        purpose=purpose,
    )


def _find_gemini_project(headers: Mapping[str, str], request: ClientRequest) -> tuple[str, str | None] | None:
    """Gemini CLI sends no ID of its session. Sessions of one project share a scope, which their lists name."""
    if not any(mark in headers.get("user-agent", "") for mark in _GEMINI_USER_AGENTS):
        return None
    parts = request.messages[0].message.parts if request.messages else ()
    for part in parts:
        if isinstance(part, TextPart) and part.text.startswith(SESSION_CONTEXT_OPENING):
            folder = _GEMINI_FOLDER.search(part.text)
            return GEMINI_CLI, f"{PROJECT_SESSION_PREFIX}{folder[1]}" if folder is not None else None
    return GEMINI_CLI, None


def _find_project(request: ClientRequest) -> str | None:
    contents = [each.get("content") for each in request.instructions]
    texts = [each["text"] for content in contents for each in filter_objects(content) if "text" in each]
    texts += [*contents, *(each.message.text for each in request.messages[:MAX_SEARCHED_MESSAGES])]
    for text in texts:
        for label in _PROJECT_LABELS if isinstance(text, str) else ():
            start = text.find(label)
            found = _PROJECT.match(text, start + len(label)) if start >= 0 else None
            if found is not None:
                return found[0].strip()
    return None


def find_session(headers: Mapping[str, str], session_headers: Mapping[str, str]) -> tuple[str, str] | None:
    """The client's name and its session."""
    found = [(client, headers[name]) for name, client in session_headers.items() if client and name in headers]
    if _CODEX_PARENT_HEADER in headers and ("codex", session := headers.get("session-id", "")) in found:
        return "codex", session
    return found[0] if found else None
