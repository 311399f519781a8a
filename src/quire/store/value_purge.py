"""Purge by value: erases one text, such as a leaked key, from every row of a tenant.

Whatever contains the value is purged as a whole: messages and compactions with everything derived from them, memories,
blobs, indexed documents; titles and names are cleared. The digests of entries stay, so the hash chain still verifies.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, Text, bindparam, delete, func, or_, select

from quire.db import schema
from quire.db.schema import blob_uses, blobs, metadata
from quire.errors import InvalidRequest
from quire.index import memories, passages
from quire.index.documents import delete_documents
from quire.log import conversations, transcripts
from quire.log.types import ValuePurge
from quire.store import purge
from quire.store.backtests import backtest_shards, backtests, delete_backtests
from quire.turns import events as turn_events
from quire.turns import leases as turn_leases
from quire.usage.rollup import reset_usage, usage_contributions

MIN_VALUE_CHARS = 8
"""A shorter value is in too many texts that have nothing to do with it."""
MAX_VALUE_CHARS = 20_000
MAX_ESCAPE_DEPTH = 3
"""JSON strings within JSON strings: a body holds the arguments of a tool call, which may hold JSON again."""

CLEARED_COLUMNS = ("title", "project", "agent", "parent_agent")
"""Texts of a conversation that may be cleared; its id, session, client and purpose identify it."""

ValueRow = Mapping[str, Any]
"""Primary key of a row that contains the value."""


def check_value(value: str) -> str:
    if not MIN_VALUE_CHARS <= len(value) <= MAX_VALUE_CHARS:
        raise InvalidRequest(
            f"A value to purge has {MIN_VALUE_CHARS} to {MAX_VALUE_CHARS} characters, not {len(value)}; give all of it."
        )
    return value


def list_written_forms(value: str) -> list[str]:
    """The value as text and inside JSON strings, as programs escape it."""
    forms = level = {value}
    for _ in range(MAX_ESCAPE_DEPTH):
        escaped = {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in level for ascii_only in (False, True)}
        level = escaped | {form.replace("/", "\\/") for form in escaped}
        forms = forms | level
    return sorted(forms)


def count_value_rows(connection: Connection, tenant: str, value: str) -> dict[str, int]:
    """The number of rows that contain this text, by table."""
    found = find_value(connection, tenant, value)
    return {name.removeprefix("quire_"): len(rows) for name, rows in found.items()}


def find_value(connection: Connection, tenant: str, value: str) -> dict[str, list[ValueRow]]:
    """Rows of the tenant that contain the value, by table."""
    forms = list_written_forms(check_value(value))
    # A message contains the value of its attachment, whose digest it holds.
    holding_blobs = _find_rows(connection, tenant, blobs, forms)
    entry_forms = [*forms, *(row["digest"].hex() for row in holding_blobs)]
    found = {
        table.name: _find_rows(connection, tenant, table, entry_forms if table is schema.entries else forms)
        for table in metadata.sorted_tables
        if "tenant" in table.c and table is not blobs
    }
    return {name: rows for name, rows in (found | {blobs.name: holding_blobs}).items() if rows}


def erase_value(connection: Connection, tenant: str, value: str) -> ValuePurge:
    """Erases this text, such as a leaked key, from every row of the tenant."""
    found = find_value(connection, tenant, value)
    purged = list(_purge_entries(connection, tenant, found.pop(schema.entries.name, ())))
    counts: dict[str, int] = {}
    for name, rows in found.items():
        erase = _ERASERS.get(name)
        if erase is not None:
            erase(connection, tenant, rows, value)
            counts[name.removeprefix("quire_")] = len(rows)
    remaining = find_value(connection, tenant, value)
    return ValuePurge(tuple(purged), counts, tuple(name.removeprefix("quire_") for name in remaining))


def _find_rows(connection: Connection, tenant: str, table: Table, forms: Sequence[str]) -> list[ValueRow]:
    conditions = [_contains(connection, column, form) for column in _list_text_columns(table) for form in forms]
    if not conditions:
        return []
    query = select(*table.primary_key).where(table.c.tenant == tenant, or_(*conditions))
    return [dict(row) for row in connection.execute(query).mappings()]


def _list_text_columns(table: Table) -> Iterator[Column[Any]]:
    for column in table.c:
        if column is blobs.c.data or (isinstance(column.type, Text) and column.name != "tenant"):
            yield column


def _contains(connection: Connection, column: Column[Any], form: str) -> ColumnElement[bool]:
    quote = bindparam(None, form.encode() if column is blobs.c.data else form, type_=column.type)
    if connection.dialect.name == "postgresql":
        return func.position(quote.op("IN")(column)) > 0
    return func.instr(column, quote) > 0


def _purge_entries(connection: Connection, tenant: str, rows: Iterable[ValueRow]) -> Iterator[tuple[str, int, int]]:
    by_conversation: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for row in rows:
        by_conversation[row["conversation"]].add((row["branch"], row["seq"]))
    for conversation, entry_keys in sorted(by_conversation.items()):
        for entry in purge.purge_own_entries(connection, tenant, conversation, entry_keys):
            yield entry.conversation, entry.branch, entry.seq


def _clear_conversations(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    for row in rows:
        conversation = row["conversation"]
        stored = connection.execute(
            select(*(schema.conversations.c[name] for name in CLEARED_COLUMNS)).where(
                schema.conversations.c.tenant == tenant, schema.conversations.c.conversation == conversation
            )
        ).one()
        columns = [name for name, text in zip(CLEARED_COLUMNS, stored, strict=True) if text and value in text]
        if columns:
            conversations.clear_texts(connection, tenant, conversation, columns)
            reset_usage(connection, tenant, conversation)


def _reset_branch_names(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    for row in rows:
        branch = conversations.get_branch(connection, tenant, row["conversation"], row["branch"])
        if value in branch.name:
            conversations.reset_branch_name(connection, tenant, branch.conversation, branch.number)


def _erase_manifest_names(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    for conversation in sorted({row["conversation"] for row in rows}):
        purge.erase_decision_names(
            connection, tenant, conversation, lambda row: row.name is not None and value in row.name
        )
        reset_usage(connection, tenant, conversation)


def _erase_memories(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    del value
    to_purge = [memories.lock_memory(connection, tenant, row["memory"]) for row in rows]
    memories.erase_memories(connection, tenant, to_purge)


def _delete_passages(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    del value
    for row in rows:
        passages.delete_passages(connection, tenant, row["scope"], [row["key"]])


def _delete_documents(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    """The index alone; a file that still contains the value is indexed again."""
    del value
    for row in rows:
        delete_documents(connection, tenant, row["vault"], [row["path"]])


def _delete_blobs(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    del value
    for row in rows:
        for table in (blob_uses, blobs):
            connection.execute(delete(table).where(table.c.tenant == tenant, table.c.digest == row["digest"]))


def _delete_transcripts(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    del value
    keys = {transcripts.TranscriptKey(row["project"], row["session"], row["subpath"]) for row in rows}
    transcripts.delete_exact(connection, tenant, keys)


def _reset_usage(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    """What is left of the conversations is counted again; totals and pairs have the names of contributions alone."""
    del value
    for conversation in sorted({row["conversation"] for row in rows}):
        reset_usage(connection, tenant, conversation)


def _delete_outcomes(connection: Connection, tenant: str, rows: Sequence[ValueRow], value: str) -> None:
    del value
    for conversation in {row["conversation"] for row in rows}:
        turn_leases.delete_outcomes(connection, tenant, conversation)


def _delete_turn_events(connection: Connection, tenant: str, rows: Iterable[ValueRow], _value: str) -> None:
    for conversation in {row["conversation"] for row in rows}:
        turn_events.delete_conversation_events(connection, tenant, conversation)


def _delete_backtests(connection: Connection, tenant: str, rows: Sequence[ValueRow], _value: str) -> None:
    delete_backtests(connection, tenant, {row["backtest"] for row in rows})


_ERASERS = {
    schema.conversations.name: _clear_conversations,
    schema.branches.name: _reset_branch_names,
    schema.manifests.name: _erase_manifest_names,
    schema.memories.name: _erase_memories,
    schema.passages.name: _delete_passages,
    schema.documents.name: _delete_documents,
    schema.transcripts.name: _delete_transcripts,
    schema.transcript_lines.name: _delete_transcripts,
    schema.turn_leases.name: _delete_outcomes,
    schema.turn_events.name: _delete_turn_events,
    blobs.name: _delete_blobs,
    usage_contributions.name: _reset_usage,
    backtests.name: _delete_backtests,
    backtest_shards.name: _delete_backtests,
}
