"""Reads the sessions of GitHub Copilot CLI: one file of events each.

Events of a sub-agent name it by `agentId`. The usage of a request is a separate event, with the id of the call. Older
versions store the output of each reply, and the usage of each model since the session began when it ends.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.readers import JsonLine, read_json_lines
from quire.importers.source_fields import parse_time, read_count, read_id, read_title, retain_fields
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.sources.base import SourceCompaction, SourceConversation, SourceError, SourceMessage, StoredSource

_FILE_NAME = "events.jsonl"
_SKIPPED_MARKS = (b'"type":"model.', b'"type":"system.message"')
"""Events that repeat whole requests, at the beginning of their lines."""
_HEAD_BYTES = 60
_STATE_TYPES = ("session.", "assistant.turn_", "subagent.", "tool.execution_start")
_USER_FIELDS = frozenset(
    {"content", "transformedContent", "messageId", "delivery", "interactionId", "turnId", "parentAgentTaskId",
     "supportedNativeDocumentMimeTypes", "source"}
)  # fmt: skip
_REPLY_FIELDS = frozenset(
    {"messageId", "originatingMessageId", "model", "content", "toolRequests", "interactionId", "turnId",
     "reasoningText", "apiCallId", "parentToolCallId", "rte", "outputTokens"}
)  # fmt: skip


class CopilotCliSource(StoredSource):
    name = "copilot-cli"
    title = "Copilot CLI"
    patterns = (f"*/{_FILE_NAME}",)
    not_stored = ("cost",)
    reads = 2

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield Path(env.get("COPILOT_HOME") or find_home(env) / ".copilot") / "session-state"

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        usages: dict[str, Usage] = {}
        replies: dict[str, Usage] = {}
        """Usage of the replies since the session began or was resumed, if there is no other event with it."""
        totals: dict[str, Usage] = {}
        """Usage of each model when the session ended before."""
        sub_agents: dict[str, str] = {}
        start: dict[str, Any] = {}
        for line in read_json_lines(path, is_skipped=_is_skipped):
            if not isinstance(line, JsonLine):
                continue
            data = get_object(line.value, "data")
            match line.value.get("type"):
                case "session.start":
                    start = start or data
                case "session.usage_record":
                    usage = get_object(data, "usage")
                    if (made := _read_usage(usage)) is not None:
                        usages[str(usage.get("apiCallId"))] = made
                case "assistant.message":
                    event, call = str(line.value.get("id")), data.get("apiCallId")
                    if call not in usages and (written := read_count(data.get("outputTokens"))):
                        replies[event] = Usage(model=get_text(data, "model"), output_tokens=written, estimated=True)
                case "session.shutdown":
                    for model, metrics in get_object(data, "modelMetrics").items():
                        total = _read_usage(get_object(metrics, "usage")) if is_object(metrics) else None
                        if total is not None:
                            _share_usage(replies, model, total, totals.get(model, Usage()))
                            totals[model] = total
                    usages |= replies
                    replies = {}
                case "subagent.started" if agent := read_id(line.value.get("agentId")):
                    sub_agents[agent] = read_title(data.get("agentDescription") or data.get("agentName"))
                case _:
                    pass
        usages |= replies
        session = read_id(start.get("sessionId")) or path.parent.name
        origin = ConversationOrigin(
            client=self.name, session=session, project=get_text(get_object(start, "context"), "cwd")
        )
        yield SourceConversation(
            id=session,
            messages=self._read_messages(path, None, usages),
            origin=origin,
            created_at=parse_time(start.get("startTime")),
            dropped=("system.message",),
        )
        for agent, title in sub_agents.items():
            names = {"agent": agent, "parent_agent": session, "purpose": "subagent"}
            yield SourceConversation(
                id=f"{session}/{agent}",
                messages=self._read_messages(path, agent, usages),
                title=title,
                origin=origin.model_copy(update=names),
                dropped=("system.message",),
            )

    def _read_messages(
        self, path: Path, agent: str | None, usages: dict[str, Usage]
    ) -> Iterator[SourceMessage | SourceError]:
        links, trigger = MessageLinks(), None
        dropped: dict[str, None] = {}
        for line in read_json_lines(path, is_skipped=_is_skipped):
            if isinstance(line, SourceError):
                if agent is None:
                    yield line
                continue
            value, data = line.value, get_object(line.value, "data")
            if read_id(value.get("agentId")) != agent:
                continue
            message: Message | None = None
            compaction: SourceCompaction | None = None
            usage = usages.get(str(data.get("apiCallId"))) or usages.get(str(value.get("id")))
            match value.get("type"):
                case "user.message":
                    fields = retain_fields(data, _USER_FIELDS, self.name)
                    if text := get_text(data, "content"):
                        message = Message(role="user", parts=(TextPart(text=text),), provider_fields=fields)
                case "assistant.message":
                    message = self._build_reply(data)
                case "tool.execution_complete":
                    result = get_object(data, "result")
                    text = get_text(result, "content") or get_text(get_object(data, "error"), "message") or ""
                    call_id = read_id(data.get("toolCallId")) or f"line:{line.number}"
                    message = Message.tool(call_id, text, is_error=data.get("success") is False)
                case "session.compaction_start":
                    trigger = data.get("trigger")
                case "session.compaction_complete" if summary := get_text(data, "summaryContent"):
                    message = Message.user(summary)
                    usage = _read_usage(get_object(data, "compactionTokensUsed"))
                    compaction = SourceCompaction(
                        summary,
                        trigger="manual" if trigger == "manual" else "threshold",
                        tokens_before=read_count(data.get("preCompactionTokens")),
                        tokens_after=read_count(data.get("postCompactionTokens")),
                    )
                case str(kind) if not kind.startswith(_STATE_TYPES):
                    dropped[kind] = None
                case _:
                    pass
            if message is not None:
                yield from links.add(
                    read_id(value.get("id")) or f"line:{line.number}",
                    [message],
                    after=links.last,
                    at=parse_time(value.get("timestamp")),
                    usage=usage,
                    compaction=compaction,
                    dropped=tuple(dropped),
                )
                dropped = {}

    def _build_reply(self, data: dict[str, Any]) -> Message | None:
        parts: list[Part] = []
        if thinking := get_text(data, "reasoningText"):
            parts.append(ThinkingPart(text=thinking))
        if text := get_text(data, "content"):
            parts.append(TextPart(text=text))
        for call in filter_objects(data.get("toolRequests")):
            name, arguments = get_text(call, "name") or "tool", call.get("arguments")
            text = arguments if isinstance(arguments, str) else dump_json(arguments or {})
            parts.append(ToolCallPart(id=read_id(call.get("toolCallId")) or name, name=name, arguments=text))
        fields = retain_fields(data, _REPLY_FIELDS, self.name)
        return Message(role="assistant", parts=tuple(parts), provider_fields=fields) if parts else None


def _is_skipped(line: bytes) -> bool:
    return any(mark in line[:_HEAD_BYTES] for mark in _SKIPPED_MARKS)


def _read_usage(usage: dict[str, Any]) -> Usage | None:
    """Usage of one call; its input includes the cached tokens."""
    sent, replied = read_count(usage.get("inputTokens")), read_count(usage.get("outputTokens"))
    if not sent and not replied:
        return None
    return Usage(
        model=get_text(usage, "model"),
        input_tokens=sent,
        output_tokens=replied,
        cache_read_tokens=read_count(usage.get("cacheReadTokens")),
        cache_write_tokens=read_count(usage.get("cacheWriteTokens")),
    )


def _share_usage(replies: dict[str, Usage], model: str, total: Usage, before: Usage) -> None:
    """Gives each reply of a model an equal share of the usage since `before`, so that the sum is right."""
    own = [event for event, usage in replies.items() if usage.model in (None, model)]
    counts = ("input_tokens", "cache_read_tokens", "cache_write_tokens")
    if any(getattr(total, name) < getattr(before, name) for name in counts):
        # The count was reset.
        before = Usage()
    for index, event in enumerate(own):
        shares: dict[str, int] = {}
        for name in counts:
            added = getattr(total, name) - getattr(before, name)
            shares[name] = added * (index + 1) // len(own) - added * index // len(own)
        replies[event] = replies[event].model_copy(update={"model": model, **shares})
