"""Reads the tasks of Roo Code, and of other extensions with the same files: one folder each.

`api_conversation_history.json` has the messages, `ui_messages.json` the usage of each request. Roo Code hides what it
condensed or truncated and does not delete it. The summary names it by an id.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quire.errors import InvalidEntry
from quire.importers.anthropic_content import parse_content
from quire.importers.message_trees import MessageLinks
from quire.importers.places import list_editor_folders
from quire.importers.readers import parse_json, read_json_file
from quire.importers.source_fields import (
    add_usage,
    parse_time,
    read_cost,
    read_count,
    read_id,
    read_title,
    retain_fields,
)
from quire.model import Usage
from quire.model.json_values import filter_objects, get_text, is_object
from quire.sources.base import (
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    StoredSource,
    make_origin,
)

HISTORY_FILE = "api_conversation_history.json"
_UI_FILE = "ui_messages.json"
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "ts", "isSummary", "condenseId", "condenseParent", "truncationId", "truncationParent",
     "isTruncationMarker", "modelInfo", "metrics", "id"}
)  # fmt: skip


class RooCodeSource(StoredSource):
    name = "roo-code"
    title = "Roo Code"
    patterns = (f"*/{HISTORY_FILE}", HISTORY_FILE)
    is_experimental = True
    not_stored = ("models",)

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        return list_task_folders(env, "rooveterinaryinc.roo-cline")

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        return read_task(path, self.name)


def list_task_folders(env: Mapping[str, str], extension: str) -> list[Path]:
    return [folder / "globalStorage" / extension / "tasks" for folder in list_editor_folders(env)]


def read_task(path: Path, source: str) -> Iterator[SourceConversation | SourceError]:
    """The conversation of one task; `path` is its history."""
    folder = path.parent
    item = _find_history_item(folder)
    parent, root = get_text(item, "parentTaskId"), get_text(item, "rootTaskId")
    project = get_text(item, "workspace") or get_text(item, "cwdOnTaskInitialization")
    agent, raw_messages = folder.name if parent else None, filter_objects(read_json_file(path))
    yield SourceConversation(
        id=folder.name,
        messages=_read_messages(raw_messages, _read_requests(folder), source),
        title=read_title(item.get("task")),
        origin=make_origin(source, root or parent or folder.name, project, agent=agent, parent=parent),
        # The name of the folder is the time in milliseconds in all but newer versions.
        created_at=parse_time(int(folder.name)) if folder.name.isdecimal() else parse_time(item.get("ts")),
    )


def _find_history_item(folder: Path) -> dict[str, Any]:
    """What the extension lists of the task: a file of Roo Code, or a row of Cline's list."""
    own, listed = folder / "history_item.json", folder.parent.parent / "state" / "taskHistory.json"
    if own.is_file() and is_object(value := read_json_file(own)):
        return value
    rows = filter_objects(read_json_file(listed)) if listed.is_file() else []
    return next((row for row in rows if row.get("id") == folder.name), dict[str, Any]())


class _Request(NamedTuple):
    at: int
    usage: Usage | None
    cost_usd: float | None


def _read_requests(folder: Path) -> list[_Request]:
    """The requests of a task in order."""
    path = folder / _UI_FILE
    requests: list[_Request] = []
    for message in filter_objects(read_json_file(path)) if path.is_file() else []:
        if message.get("say") != "api_req_started":
            continue
        try:
            request = parse_json((get_text(message, "text") or "{}").encode())
        except ValueError:
            continue
        if not is_object(request):
            continue
        sent, read, written = (read_count(request.get(name)) for name in ("tokensIn", "cacheReads", "cacheWrites"))
        # With OpenAI's protocol, Roo Code counts cached tokens as a part of the input.
        cached = read + written if request.get("apiProtocol") == "openai" else 0
        usage = add_usage(
            None,
            uncached=max(sent - cached, 0),
            cache_read=read,
            cache_write=written,
            output=request.get("tokensOut"),
        )
        requests.append(_Request(read_count_ms(message.get("ts")), usage, read_cost(request.get("cost"))))
    return requests


def read_count_ms(value: object) -> int:
    """A time in milliseconds, or 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _read_messages(
    raw_messages: list[dict[str, Any]], requests: list[_Request], source: str
) -> Iterator[SourceMessage | SourceError]:
    links, used = MessageLinks(), set[int]()
    hidden: dict[str, set[str]] = {}
    """Ids of compactions, and of the messages that each hides."""
    ids: list[str] = []
    for index, raw in enumerate(raw_messages):
        at = read_count_ms(raw.get("ts"))
        id_ = f"{at}:{raw.get('role')}" if at else f"message:{index}"
        id_ = id_ if id_ not in ids else f"message:{index}"
        try:
            messages = parse_content(raw.get("role"), raw.get("content"))
        except (InvalidEntry, ValueError, TypeError) as error:
            yield SourceError.of(id_, error)
            continue
        if messages and (fields := retain_fields(raw, _MESSAGE_FIELDS, source)):
            messages[0] = messages[0].model_copy(update={"provider_fields": fields})
        compaction: SourceCompaction | None = None
        for name in ("condenseParent", "truncationParent"):
            if (summary_id := read_id(raw.get(name))) is not None:
                hidden.setdefault(summary_id, set()).add(id_)
        if messages and (raw.get("isSummary") or raw.get("isTruncationMarker")):
            gone = hidden.get(read_id(raw.get("condenseId")) or read_id(raw.get("truncationId")) or "", set(ids))
            preserved = (links.get_end(each) for each in ids if each not in gone)
            compaction = SourceCompaction(messages[0].text, preserved=tuple(filter(None, preserved)))
        request = _Request(0, None, None)
        if raw.get("role") == "assistant":
            # The last request that began before the reply; where replies have no times, the next one.
            position = bisect_right([each.at for each in requests], at) - 1 if at else len(used)
            if 0 <= position < len(requests) and position not in used:
                used.add(position)
                request = requests[position]
        ids.append(id_)
        yield from links.add(
            id_,
            messages,
            after=links.last,
            at=parse_time(at) if at else None,
            usage=request.usage,
            cost_usd=request.cost_usd,
            compaction=compaction,
        )
