"""Reads the chats of Qwen Code: JSON Lines, in which `parentUuid` links the lines to a tree.

The line of a compression has the history that replaces everything before it. What a sub-agent said in the foreground is
stored as telemetry only: the text and the usage of each of its replies.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.google_content import list_parts, make_usage, parse_parts
from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.readers import JsonLine, read_json_lines
from quire.importers.source_fields import parse_time, read_count, read_title, retain_fields
from quire.log.types import ConversationOrigin
from quire.model import Message, Role
from quire.model.json_values import filter_objects, get_object, get_text
from quire.sources.base import SourceCompaction, SourceConversation, SourceError, SourceMessage, StoredSource

_USAGE_NAMES = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
_TELEMETRY_NAMES = (
    "input_token_count",
    "cached_content_token_count",
    "output_token_count",
    "thoughts_token_count",
)
_ROLES: dict[object, Role] = {"user": "user", "tool_result": "user", "assistant": "assistant"}
_LINE_FIELDS = frozenset(
    {"uuid", "parentUuid", "sessionId", "timestamp", "type", "cwd", "version", "gitBranch", "message", "model",
     "usageMetadata", "toolCallResult", "agentId", "isSidechain"}
)  # fmt: skip
_BOOKKEEPING_SUBTYPES = ("ui_telemetry", "attribution_snapshot", "custom_title")


class QwenCodeSource(StoredSource):
    name = "qwen-code"
    title = "Qwen Code"
    patterns = ("*/chats/*.jsonl", "*/subagents/**/*.jsonl", "*.jsonl")
    not_stored = ("cost",)

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        own = (env.get("QWEN_RUNTIME_DIR"), env.get("QWEN_HOME"), find_home(env) / ".qwen")
        return (Path(folder) / "projects" for folder in own if folder)

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        title, first = "", dict[str, Any]()
        sub_agents: dict[str, str] = {}
        for line in read_json_lines(path):
            if isinstance(line, JsonLine):
                first = first or line.value
                payload = get_object(line.value, "systemPayload")
                title = read_title(payload.get("customTitle") or payload.get("title")) or title
                if (prompt := _find_sub_agent(line.value)) is not None:
                    sub_agents[prompt] = get_text(get_object(payload, "uiEvent"), "subagent_name") or prompt
        session = get_text(first, "sessionId") or path.stem
        origin = ConversationOrigin(client=self.name, session=session, project=get_text(first, "cwd"))
        is_sub_agent = "chats" not in path.parts and "subagents" in path.parts
        if is_sub_agent:
            agent = get_text(first, "agentId") or path.stem
            names = {"agent": agent, "parent_agent": session, "purpose": "subagent"}
            origin = origin.model_copy(update=names)
        yield SourceConversation(
            id=f"{session}/{path.stem}" if is_sub_agent else path.stem,
            messages=self._read_messages(path),
            title=title,
            origin=origin,
            created_at=parse_time(first.get("timestamp")),
        )
        for agent, name in sub_agents.items():
            names = {"agent": agent, "parent_agent": session, "purpose": "subagent"}
            yield SourceConversation(
                id=f"{session}/{agent}",
                messages=_read_telemetry(path, agent),
                title=read_title(name),
                origin=origin.model_copy(update=names),
                dropped=("messages of the sub-agent",),
            )

    def _read_messages(self, path: Path) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        dropped: dict[str, None] = {}
        for line in read_json_lines(path):
            if isinstance(line, SourceError):
                yield line
                continue
            value = line.value
            id_, kind = get_text(value, "uuid") or f"line:{line.number}", value.get("type")
            parent = get_text(value, "parentUuid") if "parentUuid" in value else links.last
            at, payload = parse_time(value.get("timestamp")), get_object(value, "systemPayload")
            messages: list[Message] = []
            compaction: SourceCompaction | None = None
            if kind in _ROLES:
                parts = list_parts(get_object(value, "message").get("parts"))
                messages = parse_parts(parts, role=_ROLES[kind], source=self.name)
                if messages and (fields := retain_fields(value, _LINE_FIELDS, self.name)):
                    messages[0] = messages[0].model_copy(update={"provider_fields": fields})
            elif value.get("subtype") == "chat_compression":
                info, history = get_object(payload, "info"), filter_objects(payload.get("compressedHistory"))
                contents = (
                    parse_parts(list_parts(each.get("parts")), role="user", source=self.name) for each in history
                )
                if summary := next((message.text for content in contents for message in content), ""):
                    compaction = SourceCompaction(
                        summary,
                        tokens_before=read_count(info.get("originalTokenCount")),
                        tokens_after=read_count(info.get("newTokenCount")),
                    )
                    messages = [Message.user(summary)]
            elif value.get("subtype") not in _BOOKKEEPING_SUBTYPES:
                dropped[f"{kind}:{value.get('subtype')}"] = None
            usage = make_usage(get_object(value, "usageMetadata"), _USAGE_NAMES, model=value.get("model"))
            names = tuple(dropped) if messages else ()
            if messages:
                dropped = {}
            yield from links.add(id_, messages, after=parent, at=at, usage=usage, compaction=compaction, dropped=names)


def _find_sub_agent(value: dict[str, Any]) -> str | None:
    """Id of the sub-agent whose reply this line of telemetry is about. The prompt is `session#agent#number`."""
    event = get_object(get_object(value, "systemPayload"), "uiEvent")
    prompt = (get_text(event, "prompt_id") or "").split("#")
    is_reply = event.get("event.name") == "qwen-code.api_response" and "subagent_name" in event
    return prompt[1] if is_reply and len(prompt) > 1 else None


def _read_telemetry(path: Path, agent: str) -> Iterator[SourceMessage | SourceError]:
    links = MessageLinks()
    for line in read_json_lines(path):
        if isinstance(line, JsonLine) and _find_sub_agent(line.value) == agent:
            event = get_object(get_object(line.value, "systemPayload"), "uiEvent")
            text = get_text(event, "response_text") or "[no text]"
            yield from links.add(
                get_text(line.value, "uuid") or f"line:{line.number}",
                [Message.assistant(text)],
                after=links.last,
                at=parse_time(line.value.get("timestamp")),
                usage=make_usage(event, _TELEMETRY_NAMES, model=event.get("model")),
            )
