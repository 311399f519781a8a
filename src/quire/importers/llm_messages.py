"""Threads in the second schema of simonw/llm: a tree of messages by content hash, with their parts as rows."""

from collections.abc import Iterator
from typing import Any

from quire.importers.json_lines import parse_json
from quire.importers.llm_responses import make_attachment, read_llm_usage
from quire.importers.message_nodes import MessageNode, mark_missing
from quire.importers.source_fields import read_id
from quire.importers.sqlite_reader import SqliteReader
from quire.importers.times import parse_time
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.messages import ToolResultContent
from quire.view.wire_formats.fields import dump_json, filter_objects, get_object, get_text, is_object

_FAMILY = (
    "WITH RECURSIVE family(id) AS (SELECT ? UNION SELECT t.id FROM threads t JOIN family f ON t.forked_from = f.id)"
)
"""The thread and all of its forks."""
_TURNS = f"{_FAMILY} SELECT * FROM turns WHERE thread_id IN (SELECT id FROM family) ORDER BY datetime_utc, id"  # noqa: S608 (constants)
_MESSAGES = f"""{_FAMILY}, chain(hash) AS (
    SELECT tip_message_hash FROM threads WHERE id IN (SELECT id FROM family)
    UNION SELECT tip_message_hash FROM turns WHERE thread_id IN (SELECT id FROM family)
    UNION SELECT m.parent_hash FROM messages m JOIN chain c ON m.hash = c.hash
) SELECT * FROM messages WHERE hash IN (SELECT hash FROM chain) ORDER BY rowid"""  # noqa: S608 (constants)
"""All messages that these threads or their turns lead to."""


def read_thread_nodes(database: SqliteReader, thread: object) -> Iterator[MessageNode]:
    """All messages that the turns of a thread and of its forks lead to, in the order in which they were written."""
    parents = {row["hash"]: row["parent_hash"] for row in database.query(_MESSAGES, (thread,))}
    turns: dict[Any, dict[str, Any]] = {}
    times: dict[Any, int] = {}
    for turn in database.query(_TURNS, (thread,)):
        turns.setdefault(turn["tip_message_hash"], turn)
        _set_times(times, turn, parents)
    for row in database.query(_MESSAGES, (thread,)):
        if (id_ := read_id(row["hash"])) is None:
            continue
        dropped: list[str] = []
        parts = tuple(_read_parts(database, row["hash"], dropped))
        turn = turns.get(row["hash"])
        yield MessageNode(
            id_,
            read_id(row["parent_hash"]),
            mark_missing(_make_messages(row.get("role"), parts), role="user", dropped=dropped),
            at=times.get(row["hash"]),
            usage=read_llm_usage(turn) if turn is not None else None,
            dropped=tuple(dropped),
        )


def _set_times(times: dict[Any, int], turn: dict[str, Any], parents: dict[Any, Any]) -> None:
    """Gives the messages that a turn is the first to contain its time: they have none of their own."""
    at, hash_ = parse_time(turn["datetime_utc"]), turn["tip_message_hash"]
    while at is not None and hash_ in parents and hash_ not in times:
        times[hash_] = at
        hash_ = parents[hash_]


def _make_messages(role: object, parts: tuple[Part, ...]) -> tuple[Message, ...]:
    """One message, or one for each result of a tool."""
    if not parts:
        return ()
    match role:
        case "assistant":
            return (Message(role="assistant", parts=parts),)
        case "tool":
            return tuple(Message(role="tool", parts=(part,)) for part in parts if isinstance(part, ToolResultPart))
        case "system":
            return (Message(role="system", parts=parts),)
        case _:
            return (Message(role="user", parts=parts),)


def _read_parts(database: SqliteReader, hash_: object, dropped: list[str]) -> Iterator[Part]:
    for row in database.query("SELECT * FROM parts WHERE message_hash = ? ORDER BY position", (hash_,)):
        payload = _parse_payload(row.get("payload"))
        text = row.get("text") if isinstance(row.get("text"), str) else _resolve_text(database, payload)
        match row.get("type"):
            case "text":
                yield TextPart(text=text or "")
            case "reasoning":
                yield ThinkingPart(text=text or "")
            case "tool_call":
                arguments = payload.get("arguments")
                yield ToolCallPart(
                    id=read_id(payload.get("tool_call_id")) or str(row.get("tool_name")),
                    name=str(row.get("tool_name") or payload.get("name") or "tool"),
                    arguments=arguments if isinstance(arguments, str) else dump_json(arguments or {}),
                )
            case "tool_result":
                yield _read_result(database, row, payload, dropped)
            case "attachment":
                yield from _read_attachments(database, [get_object(payload, "attachment")], dropped)
            case kind:
                dropped.append(f"part {kind}")


def _parse_payload(payload: object) -> dict[str, Any]:
    try:
        value = parse_json(payload.encode()) if isinstance(payload, str) else None
    except ValueError:
        value = None
    return value if is_object(value) else {}


def _resolve_text(database: SqliteReader, payload: dict[str, Any]) -> str:
    """Text that is stored as literals and references to fragments."""
    pieces: list[str] = []
    for piece in filter_objects(payload.get("text_ref")):
        if (literal := get_text(piece, "literal")) is not None:
            pieces.append(literal)
        elif isinstance(fragment := piece.get("fragment"), int):
            rows = database.query("SELECT content FROM fragments WHERE id = ?", (fragment,))
            pieces += [row["content"] for row in rows if isinstance(row["content"], str)]
    return "".join(pieces)


def _read_result(
    database: SqliteReader, row: dict[str, Any], payload: dict[str, Any], dropped: list[str]
) -> ToolResultPart:
    attachments = _read_attachments(database, filter_objects(payload.get("attachments")), dropped)
    return ToolResultPart(
        call_id=read_id(payload.get("tool_call_id")) or str(row.get("tool_name")),
        content=(TextPart(text=get_text(payload, "output") or ""), *attachments),
        is_error=payload.get("exception") is not None,
    )


def _read_attachments(
    database: SqliteReader, references: list[dict[str, Any]], dropped: list[str]
) -> Iterator[ToolResultContent]:
    for reference in references:
        id_ = get_text(reference, "id")
        rows = list(database.query("SELECT * FROM attachments WHERE id = ?", (id_,)))
        part = make_attachment(rows[0]) if rows else None
        if part is None:
            dropped.append(f"attachment {rows[0].get('path') if rows else id_}")
        else:
            yield part
