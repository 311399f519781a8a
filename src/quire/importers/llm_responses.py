"""Conversations in the first schema of simonw/llm: one row for each prompt and its reply."""

from collections.abc import Iterator
from typing import Any

from quire.importers.attachments import make_media_part, make_url_part
from quire.importers.json_lines import parse_json
from quire.importers.message_nodes import MessageNode, mark_missing
from quire.importers.source_fields import read_id, read_usage
from quire.importers.sqlite_reader import SqliteReader
from quire.importers.times import parse_time
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.messages import ToolResultContent
from quire.view.wire_formats.fields import is_object


def read_response_nodes(database: SqliteReader, conversation: object) -> Iterator[MessageNode]:
    """The prompts and replies of a conversation, each after the one before it."""
    rows = database.query("SELECT * FROM responses WHERE conversation_id = ? ORDER BY id", (conversation,))
    previous: str | None = None
    system: object = None
    for row in rows:
        id_ = read_id(row["id"])
        if id_ is None:
            continue
        dropped = tuple(name for name in ("schema_id", "options_json") if row.get(name) not in (None, "", "{}"))
        prompt, lost = _read_prompt(database, row, previous_system=system)
        at = parse_time(row.get("datetime_utc"))
        prompt = mark_missing(prompt, role="user", dropped=lost)
        yield MessageNode(f"{id_}:prompt", previous, prompt, at=at, dropped=(*lost, *dropped))
        yield MessageNode(id_, f"{id_}:prompt", _read_reply(database, row), at=at, usage=read_llm_usage(row))
        previous, system = id_, row.get("system") or system


def _read_prompt(
    database: SqliteReader, row: dict[str, Any], *, previous_system: object
) -> tuple[tuple[Message, ...], list[str]]:
    """System text if it changed, results of tools that the reply before it called, and the question."""
    messages: list[Message] = []
    dropped: list[str] = []
    system = _join_fragments(database, "system_fragments", row, row.get("system"))
    if system and system != previous_system:
        messages.append(Message.system(system))
    messages += _read_results(database, row["id"], dropped)
    parts: list[Part] = []
    if text := _join_fragments(database, "prompt_fragments", row, row.get("prompt")):
        parts.append(TextPart(text=text))
    parts += _read_attachments(database, "prompt_attachments", "response_id", row["id"], dropped)
    if parts:
        messages.append(Message(role="user", parts=tuple(parts)))
    return tuple(messages), dropped


def _join_fragments(database: SqliteReader, table: str, row: dict[str, Any], text: object) -> str:
    """The text as the model read it: fragments first, then the text itself."""
    pieces: list[str] = []
    if database.has_tables(table, "fragments"):
        fragments = database.query(
            f'SELECT f.content FROM "{table}" p JOIN fragments f ON f.id = p.fragment_id '  # noqa: S608
            'WHERE p.response_id = ? ORDER BY p."order"',
            (row["id"],),
        )
        pieces = [each["content"] for each in fragments if isinstance(each["content"], str)]
    return "\n".join([*pieces, *([text] if isinstance(text, str) and text else [])])


def _read_results(database: SqliteReader, response: object, dropped: list[str]) -> Iterator[Message]:
    if not database.has_tables("tool_results"):
        return
    for row in database.query("SELECT * FROM tool_results WHERE response_id = ? ORDER BY id", (response,)):
        text = row.get("output")
        content: list[ToolResultContent] = [TextPart(text=text)] if isinstance(text, str) else []
        content += _read_attachments(database, "tool_results_attachments", "tool_result_id", row["id"], dropped)
        call_id = read_id(row.get("tool_call_id")) or read_id(row.get("name")) or "call"
        result = ToolResultPart(call_id=call_id, content=tuple(content), is_error=bool(row.get("exception")))
        yield Message(role="tool", parts=(result,))


def _read_attachments(
    database: SqliteReader, table: str, column: str, owner: object, dropped: list[str]
) -> Iterator[ToolResultContent]:
    if not database.has_tables(table, "attachments"):
        return
    rows = database.query(
        f'SELECT a.* FROM "{table}" p JOIN attachments a ON a.id = p.attachment_id '  # noqa: S608
        f'WHERE p."{column}" = ? ORDER BY p."order"',
        (owner,),
    )
    for row in rows:
        part = make_attachment(row)
        if part is None:
            dropped.append(f"attachment {row.get('path') or row.get('id')}")
        else:
            yield part


def make_attachment(row: dict[str, Any]) -> ToolResultContent | None:
    """The part of an attachment. Files that the log only names by their path are not read."""
    content = row.get("content")
    if isinstance(content, bytes) and content:
        return make_media_part(content, media_type=row.get("type"))
    return make_url_part(row.get("url"))


def _read_reply(database: SqliteReader, row: dict[str, Any]) -> tuple[Message, ...]:
    parts: list[Part] = []
    if isinstance(thinking := row.get("reasoning"), str) and thinking:
        parts.append(ThinkingPart(text=thinking))
    if isinstance(text := row.get("response"), str) and text:
        parts.append(TextPart(text=text))
    if database.has_tables("tool_calls"):
        for call in database.query("SELECT * FROM tool_calls WHERE response_id = ? ORDER BY id", (row["id"],)):
            name = str(call.get("name") or "tool")
            call_id = read_id(call.get("tool_call_id")) or read_id(name) or "call"
            parts.append(ToolCallPart(id=call_id, name=name, arguments=str(call.get("arguments") or "{}")))
    return (Message(role="assistant", parts=tuple(parts)),) if parts else ()


def read_llm_usage(row: dict[str, Any]) -> Usage | None:
    """Usage of one model call, in the columns that both schemas share."""
    details: Any = None
    if isinstance(raw := row.get("token_details"), str):
        try:
            details = parse_json(raw.encode())
        except ValueError:
            details = None
    fields = {**(details if is_object(details) else {}), **row}
    return read_usage(fields, model=row.get("resolved_model") or row.get("model"))
