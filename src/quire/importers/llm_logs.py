"""Reads the log of simonw/llm: `logs.db`, in both of its schemas.

Until version 0.35 a row of `responses` is a prompt with its reply. From 0.36 on, messages are a tree of content hashes,
with their parts as rows. A thread points at its last message, and a turn is one model call. An upgraded database has
both.
"""

import sqlite3
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageNode, mark_missing, order_nodes
from quire.importers.readers import SqliteReader, open_sqlite, parse_json
from quire.importers.source_fields import (
    make_media_part,
    make_url_part,
    parse_time,
    read_id,
    read_title,
    read_usage,
)
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, Role, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.model.messages import ToolResultContent
from quire.sources.base import NotStored, SourceConversation, SourceError, is_before

_APPLICATION = "io.datasette.llm"
_FILE_NAME = "logs.db"

_CONVERSATIONS = """SELECT c.id, c.name, min(r.datetime_utc) AS first_at, max(r.datetime_utc) AS last_at
FROM conversations c JOIN responses r ON r.conversation_id = c.id GROUP BY c.id ORDER BY c.id"""
_FAMILIES = """WITH RECURSIVE family(id, root) AS (
    SELECT id, id FROM threads WHERE forked_from IS NULL OR forked_from NOT IN (SELECT id FROM threads)
    UNION SELECT t.id, f.root FROM threads t JOIN family f ON t.forked_from = f.id
)"""
"""Every thread with the one that it was forked from, directly or over other forks."""
_THREADS = f"""{_FAMILIES} SELECT r.id, r.name, r.tip_message_hash AS leaf,
    min(t.datetime_utc) AS first_at, max(t.datetime_utc) AS last_at
FROM family f JOIN threads r ON r.id = f.root LEFT JOIN turns t ON t.thread_id = f.id
GROUP BY r.id ORDER BY r.id"""  # noqa: S608 (constants)
_OWN_FORKS = f"{_FAMILIES} SELECT id FROM threads WHERE id NOT IN (SELECT id FROM family)"  # noqa: S608 (constants)
_FAMILY = (
    "WITH RECURSIVE family(id) AS (SELECT ? UNION SELECT t.id FROM threads t JOIN family f ON t.forked_from = f.id)"
)
"""One thread and all of its forks."""
_TURNS = f"{_FAMILY} SELECT * FROM turns WHERE thread_id IN (SELECT id FROM family) ORDER BY datetime_utc, id"  # noqa: S608 (constants)
_MESSAGES = f"""{_FAMILY}, chain(hash) AS (
    SELECT tip_message_hash FROM threads WHERE id IN (SELECT id FROM family)
    UNION SELECT tip_message_hash FROM turns WHERE thread_id IN (SELECT id FROM family)
    UNION SELECT m.parent_hash FROM messages m JOIN chain c ON m.hash = c.hash
) SELECT * FROM messages WHERE hash IN (SELECT hash FROM chain) ORDER BY rowid"""  # noqa: S608 (constants)
"""All messages that these threads or their turns lead to."""


class LlmSource:
    name = "llm"
    title = "llm (simonw/llm)"
    is_experimental = False
    reads: int = 1
    not_stored: tuple[NotStored, ...] = ("cost",)

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        folder = find_user_directory(env, platform=sys.platform)
        return [path] if folder is not None and (path := folder / _FILE_NAME).is_file() else []

    def find_files(self, path: Path) -> Iterator[Path]:
        yield path / _FILE_NAME if path.is_dir() else path

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        try:
            with open_sqlite(path) as database:
                has_responses = database.has_tables("conversations", "responses")
                has_threads = database.has_tables("threads", "turns", "messages", "parts")
                if not has_responses and not has_threads:
                    yield SourceError.of(path.name, "The database is not a log of llm.")
                if has_responses:
                    for row in database.query(_CONVERSATIONS):
                        yield from _read_conversation(row, _read_response_nodes(database, row["id"]), since=since)
                if has_threads:
                    for row in database.query(_THREADS):
                        yield from _read_conversation(row, _read_thread_nodes(database, row["id"]), since=since)
                    for row in database.query(_OWN_FORKS):
                        yield SourceError.of(row["id"], "The thread is a fork of itself.")
        except (sqlite3.Error, OSError) as error:
            yield SourceError.of(path.name, f"The database cannot be read: {error}.")


def find_user_directory(env: Mapping[str, str], *, platform: str) -> Path | None:
    """Where llm stores its log: as `click` does it for each platform."""
    if own := env.get("LLM_USER_PATH"):
        return Path(own)
    if platform == "win32":
        return Path(roaming, _APPLICATION) if (roaming := env.get("APPDATA")) else None
    home = env.get("HOME")
    if home is None:
        return None
    if platform == "darwin":
        return Path(home, "Library", "Application Support", _APPLICATION)
    return Path(env.get("XDG_CONFIG_HOME") or Path(home, ".config"), _APPLICATION)


def _read_conversation(
    row: dict[str, Any], nodes: Iterator[MessageNode], *, since: int | None
) -> Iterator[SourceConversation]:
    """The conversation or thread of this row, unless it has no id or was last changed before `since`."""
    id_ = read_id(row["id"])
    if id_ is not None and not is_before(parse_time(row["last_at"]), since):
        yield SourceConversation(
            id=id_,
            messages=order_nodes(nodes, leaf=read_id(row.get("leaf"))),
            title=read_title(row["name"]),
            origin=ConversationOrigin(client=LlmSource.name, session=id_),
            created_at=parse_time(row["first_at"]),
        )


def _read_response_nodes(database: SqliteReader, conversation: object) -> Iterator[MessageNode]:
    """First schema: the prompts and replies of a conversation, each after the one before it."""
    rows = database.query("SELECT * FROM responses WHERE conversation_id = ? ORDER BY id", (conversation,))
    previous: str | None = None
    previous_system: object = None
    for row in rows:
        id_ = read_id(row["id"])
        if id_ is None:
            continue
        dropped: list[str] = []
        messages: list[Message] = []
        system = _join_fragments(database, "system_fragments", row, row.get("system"))
        if system and system != previous_system:
            messages.append(Message.system(system))
        if database.has_tables("tool_results"):
            results = database.query("SELECT * FROM tool_results WHERE response_id = ? ORDER BY id", (row["id"],))
            for result in results:
                output, key = result.get("output"), result["id"]
                content: list[ToolResultContent] = [TextPart(text=output)] if isinstance(output, str) else []
                content += _read_owned_attachments(database, "tool_results_attachments", "tool_result_id", key, dropped)
                call_id = read_id(result.get("tool_call_id")) or read_id(result.get("name")) or "call"
                part = ToolResultPart(call_id=call_id, content=tuple(content), is_error=bool(result.get("exception")))
                messages.append(Message(role="tool", parts=(part,)))
        parts: list[Part] = []
        if text := _join_fragments(database, "prompt_fragments", row, row.get("prompt")):
            parts.append(TextPart(text=text))
        parts += _read_owned_attachments(database, "prompt_attachments", "response_id", row["id"], dropped)
        if parts:
            messages.append(Message(role="user", parts=tuple(parts)))
        prompt = mark_missing(tuple(messages), role="user", dropped=dropped)
        dropped += [name for name in ("schema_id", "options_json") if row.get(name) not in (None, "", "{}")]
        at = parse_time(row.get("datetime_utc"))
        yield MessageNode(f"{id_}:prompt", previous, prompt, at=at, dropped=tuple(dropped))

        parts = []
        if isinstance(thinking := row.get("reasoning"), str) and thinking:
            parts.append(ThinkingPart(text=thinking))
        if isinstance(text := row.get("response"), str) and text:
            parts.append(TextPart(text=text))
        if database.has_tables("tool_calls"):
            for call in database.query("SELECT * FROM tool_calls WHERE response_id = ? ORDER BY id", (row["id"],)):
                name = str(call.get("name") or "tool")
                call_id = read_id(call.get("tool_call_id")) or read_id(name) or "call"
                parts.append(ToolCallPart(id=call_id, name=name, arguments=str(call.get("arguments") or "{}")))
        reply = (Message(role="assistant", parts=tuple(parts)),) if parts else ()
        yield MessageNode(id_, f"{id_}:prompt", reply, at=at, usage=_read_usage(row))
        previous, previous_system = id_, row.get("system") or previous_system


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


def _read_owned_attachments(
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
        part = _make_attachment(row)
        if part is None:
            dropped.append(f"attachment {row.get('path') or row.get('id')}")
        else:
            yield part


def _make_attachment(row: dict[str, Any]) -> ToolResultContent | None:
    """The part of an attachment. Files that the log only names by their path are not read."""
    content = row.get("content")
    if isinstance(content, bytes) and content:
        return make_media_part(content, media_type=row.get("type"))
    return make_url_part(row.get("url"))


def _read_usage(row: dict[str, Any]) -> Usage | None:
    """Usage of one model call, in the columns that both schemas share."""
    return read_usage(
        {**_parse_object(row.get("token_details")), **row}, model=row.get("resolved_model") or row.get("model")
    )


def _parse_object(text: object) -> dict[str, Any]:
    """The object in a column with JSON; empty if it holds anything else."""
    try:
        value = parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError:
        return {}
    return value if is_object(value) else {}


def _read_thread_nodes(database: SqliteReader, thread: object) -> Iterator[MessageNode]:
    """Second schema: all messages that the turns of a thread and of its forks lead to, in the order of their rows."""
    parents = {row["hash"]: row["parent_hash"] for row in database.query(_MESSAGES, (thread,))}
    turns: dict[Any, dict[str, Any]] = {}
    times: dict[Any, int] = {}
    for turn in database.query(_TURNS, (thread,)):
        hash_ = turn["tip_message_hash"]
        turns.setdefault(hash_, turn)
        # Messages have no time. They get the time of the first turn that contains them.
        at = parse_time(turn["datetime_utc"])
        while at is not None and hash_ in parents and hash_ not in times:
            times[hash_] = at
            hash_ = parents[hash_]
    for row in database.query(_MESSAGES, (thread,)):
        if (id_ := read_id(row["hash"])) is None:
            continue
        dropped: list[str] = []
        parts = tuple(_read_parts(database, row["hash"], dropped))
        if row.get("role") == "tool":
            results = [part for part in parts if isinstance(part, ToolResultPart)]
            messages = tuple(Message(role="tool", parts=(result,)) for result in results)
        else:
            roles: dict[object, Role] = {"assistant": "assistant", "system": "system"}
            role = roles.get(row.get("role"), "user")
            messages = (Message(role=role, parts=parts),) if parts else ()
        turn = turns.get(row["hash"])
        yield MessageNode(
            id_,
            read_id(row["parent_hash"]),
            mark_missing(messages, role="user", dropped=dropped),
            at=times.get(row["hash"]),
            usage=_read_usage(turn) if turn is not None else None,
            dropped=tuple(dropped),
        )


def _read_parts(database: SqliteReader, hash_: object, dropped: list[str]) -> Iterator[Part]:
    for row in database.query("SELECT * FROM parts WHERE message_hash = ? ORDER BY position", (hash_,)):
        payload = _parse_object(row.get("payload"))
        text = row.get("text")
        if not isinstance(text, str):
            # The text is stored as literals and references to fragments.
            pieces: list[str] = []
            for piece in filter_objects(payload.get("text_ref")):
                if (literal := get_text(piece, "literal")) is not None:
                    pieces.append(literal)
                elif isinstance(fragment := piece.get("fragment"), int):
                    rows = database.query("SELECT content FROM fragments WHERE id = ?", (fragment,))
                    pieces += [each["content"] for each in rows if isinstance(each["content"], str)]
            text = "".join(pieces)
        match row.get("type"):
            case "text":
                yield TextPart(text=text)
            case "reasoning":
                yield ThinkingPart(text=text)
            case "tool_call":
                arguments = payload.get("arguments")
                yield ToolCallPart(
                    id=read_id(payload.get("tool_call_id")) or str(row.get("tool_name")),
                    name=str(row.get("tool_name") or payload.get("name") or "tool"),
                    arguments=arguments if isinstance(arguments, str) else dump_json(arguments or {}),
                )
            case "tool_result":
                attachments = _read_named_attachments(database, filter_objects(payload.get("attachments")), dropped)
                yield ToolResultPart(
                    call_id=read_id(payload.get("tool_call_id")) or str(row.get("tool_name")),
                    content=(TextPart(text=get_text(payload, "output") or ""), *attachments),
                    is_error=payload.get("exception") is not None,
                )
            case "attachment":
                yield from _read_named_attachments(database, [get_object(payload, "attachment")], dropped)
            case kind:
                dropped.append(f"part {kind}")


def _read_named_attachments(
    database: SqliteReader, references: list[dict[str, Any]], dropped: list[str]
) -> Iterator[ToolResultContent]:
    for reference in references:
        id_ = get_text(reference, "id")
        rows = list(database.query("SELECT * FROM attachments WHERE id = ?", (id_,)))
        part = _make_attachment(rows[0]) if rows else None
        if part is None:
            dropped.append(f"attachment {rows[0].get('path') if rows else id_}")
        else:
            yield part
