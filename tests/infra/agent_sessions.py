"""Sessions of Claude Code and Codex in a store: the captured requests, sent through a gateway in this process."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import httpx2

from infra.agent_captures import CapturedRequest, load_capture, replay_script
from infra.scripted_provider import ScriptedReply, WireFormatName, run_scripted_provider
from quire.access.keys import KEY_SCOPES
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

SESSION_HEADERS = ("x-claude-code-session-id", "thread-id")
"""Headers that name the session of Claude Code and Codex."""

_TEXTS = {
    "Greet.": "Greet the crew from the shell.",
    "Again.": "Again, and say what it printed.",
    "Once more.": "Once more, now that the context is shorter.",
    "Delegate.": "Let a sub-agent greet the crew.",
    "Greet them.": "Greet the crew with echo, and report what it printed.",
}
"""The captured questions, and longer ones for readers."""


class AgentSessions(NamedTuple):
    """IDs of the conversations."""

    claude_code: str
    """Claude Code compacted it."""
    delegating: str
    """It has a sub-agent and two side calls."""
    sub_agent: str
    codex: str
    """Translated: things had no place in the upstream's format."""
    compacted_codex: str


async def create_agent_sessions(store: SqlStore) -> AgentSessions:
    """Creates sessions of both agents in two projects, the one that Claude Code compacted last."""
    compacted_codex = await _replay(store, _load("codex_compaction", project="almanac"), "responses")
    codex = await _replay(store, _load("codex_session", project="almanac"), "chat")
    captured = _load("claude_code_sub_agent", project="tide-mill")
    delegating = await _replay(store, captured, "messages")
    for question, answer in (
        ("Write a title of at most six words for: Let a sub-agent greet the crew.", "Sub-agent greets the crew"),
        ("Is this a new topic? Answer with yes or no.", "No"),
    ):
        await _replay(store, [_make_side_call(captured[0], question, answer)], "messages")
    claude_code = await _replay(store, _load("claude_code_session", project="tide-mill"), "messages")
    return AgentSessions(
        claude_code["main"], delegating["main"], delegating["subagent"], codex["main"], compacted_codex["main"]
    )


_SUMMARY = (
    "The user asked twice which gates of the sluice are open. `gatectl list --open` named gate 3, open since 06:12; "
    "all others are closed. Gate 3 must be shut before high water at 17:40."
)
_GATES = {
    "The user greeted; echo printed ahoy.": _SUMMARY,
    "Greet the crew from the shell.": "Which gates are open? Gate 3 must be shut before high water at 17:40.",
    "Again, and say what it printed.": "Is it still open?",
    "Once more, now that the context is shorter.": "And now?",
    "It said ahoy.": "Only gate 3 is open, since 06:12.",
    "I will greet.": "I will look.",
    "echo ahoy": "gatectl list --open",
    "ahoy": "gate 3 open since 06:12",
}
"""The texts of the captured session, and what a keeper of sluices would say."""


async def create_summarized_session(store: SqlStore) -> str:
    """Creates a session that Claude Code compacted with a summary of the usual length, which is recognized."""

    def rewrite(text: str) -> str:
        for captured, told in _GATES.items():
            text = text.replace(captured, told)
        return text

    captured = [
        replace(
            each,
            headers={name: "sluice" if name in SESSION_HEADERS else value for name, value in each.headers.items()},
            body=json.loads(rewrite(json.dumps(each.body))),
            reply=replace(
                each.reply,
                text=rewrite(each.reply.text),
                calls=tuple(
                    replace(call, arguments=json.loads(rewrite(json.dumps(call.arguments))))
                    for call in each.reply.calls
                ),
            ),
        )
        for each in _load("claude_code_session", project="sluice")
    ]
    return (await _replay(store, captured, "messages"))["main"]


def _load(name: str, *, project: str) -> list[CapturedRequest]:
    """Loads a captured session with readable questions and its own project."""
    return [_rewrite(each, project) for each in load_capture(name)]


def _rewrite(request: CapturedRequest, project: str) -> CapturedRequest:
    text = json.dumps(request.body).replace("/home/dev/project", f"/home/dev/{project}")
    for captured, readable in _TEXTS.items():
        text = text.replace(json.dumps(captured), json.dumps(readable))
    calls = tuple(
        replace(call, arguments={name: _TEXTS.get(str(value), value) for name, value in call.arguments.items()})
        for call in request.reply.calls
    )
    return replace(request, body=json.loads(text), reply=replace(request.reply, calls=calls))


def _make_side_call(request: CapturedRequest, question: str, answer: str) -> CapturedRequest:
    """A request of the same session without tools, as agents send for titles."""
    body = {"model": request.body["model"], "max_tokens": 50, "messages": [{"role": "user", "content": question}]}
    return replace(request, body=body, reply=ScriptedReply(answer))


async def _replay(store: SqlStore, captured: list[CapturedRequest], speaks: WireFormatName) -> Mapping[str, str]:
    """Sends the requests in order; returns the session's conversations by purpose."""
    _, key = await store.keys.create("agents", KEY_SCOPES)
    with run_scripted_provider(replay_script(captured)) as provider:
        upstream = {"base_url": provider.openai_url, "speaks": [speaks]}
        settings = Settings.model_validate({"model": "gpt-4o", "upstreams": {"*": upstream}, "context_limit": 100_000})
        async with UpstreamClient() as upstream_client:
            state = ServerState(store, settings, http_client=upstream_client, environ={})
            transport = httpx2.ASGITransport(app=create_app(state))
            async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
                for each in captured:
                    headers = {**each.headers, "authorization": f"Bearer {key}"}
                    (await client.post(each.path, content=each.raw, headers=headers)).raise_for_status()
            await state.wait_for_background()
    session = next(captured[0].headers[name] for name in SESSION_HEADERS if name in captured[0].headers)
    records = await store.list_session(session)
    return {each.origin.purpose or "main": each.id for each in records if each.origin is not None}
