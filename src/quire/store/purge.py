"""Purge, the only way to erase: removes content and everything derived from it.

The digests of entries stay, so the hash chain still verifies. A purge by value erases one text, such as a leaked key,
from every row of a tenant. Whatever contains the value is purged as a whole: messages and compactions with everything
derived from them, memories, blobs, indexed documents. Titles and names are cleared. A purge of a tenant deletes its
rows.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, Text, bindparam, delete, func, or_, select, update

from quire.db import schema
from quire.db.column_types import SealedText, is_encrypting
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import blob_uses, entries, manifests, metadata, usage_contributions
from quire.db.stored_bytes import recount_bytes
from quire.errors import InvalidEntry, InvalidRequest
from quire.index import memories, passages
from quire.index.documents import delete_documents
from quire.index.message_index import erase_messages
from quire.log import blobs, conversations, ledger, reads, transcripts
from quire.log.exchanges import NO_CONVERSATION, ExchangeReader, delete_exchanges, list_conversations
from quire.log.observations import delete_observations
from quire.log.row_digests import ROW_DIGEST, with_row_digest
from quire.log.types import MAIN_BRANCH, Branch, Memory, TenantPurge, ValuePurge
from quire.model import Compaction, Decision, Entry, Manifest, Message, TopicIndex
from quire.model.entry_bodies import purge_body
from quire.model.ids import now
from quire.model.messages import PURGED_TEXT
from quire.turns import events as turn_events
from quire.turns import leases as turn_leases
from quire.usage.rollup import reset_usage

MIN_VALUE_CHARS = 8
"""A shorter value is in too many texts that have nothing to do with it."""
MAX_VALUE_CHARS = 20_000
MAX_ESCAPE_DEPTH = 3
"""JSON strings within JSON strings: a body holds the arguments of a tool call, which may hold JSON again."""

CLEARED_COLUMNS = ("title", "metadata", "project", "agent", "parent_agent")
"""Texts of a conversation that may be cleared; its id, session, client and purpose identify it."""

_ROWS_PER_READ = 200
"""Rows of an encrypted tenant that are decrypted at a time to search them."""

ValueRow = Mapping[str, Any]
"""Primary key of a row that contains the value."""


def purge_entries(
    connection: Connection,
    tenant: str,
    conversation: str,
    seqs: Collection[int] | None = None,
    *,
    branch: int = MAIN_BRANCH,
) -> list[Entry]:
    """Erases the content of these entries (None: of the whole conversation) and everything derived from it.

    That is: summaries that cover them, memories, and the search index. Returns the purged entries as they are now.
    """
    all_branches = conversations.lock_branches(connection, tenant, conversation)
    if seqs is None:
        to_purge = [
            entry
            for each in all_branches
            if each.head_seq > each.fork_seq
            for entry in reads.read_range(connection, tenant, each, first=each.fork_seq + 1)
            if _has_content(entry) or entry.kind == "context_change"
        ]
    else:
        target = conversations.get_branch(connection, tenant, conversation, branch)
        to_purge = [reads.get_entry(connection, tenant, target, seq) for seq in sorted(set(seqs))]
        for entry in to_purge:
            if not _has_content(entry):
                raise InvalidEntry(
                    f"Entry #{entry.seq} is a {entry.kind} and has no content to purge; give messages, compactions or "
                    "topic indexes."
                )
        to_purge += _find_summaries(connection, tenant, all_branches, to_purge)
    purged = _purge(connection, tenant, all_branches, to_purge, whole=seqs is None)
    if seqs is None:
        conversations.clear_conversation(connection, tenant, conversation)
    recount_bytes(connection, tenant)
    return purged


def _has_content(entry: Entry) -> bool:
    return entry.kind in ("message", "compaction", "topic_index")


def _find_summaries(
    connection: Connection, tenant: str, all_branches: Iterable[Branch], to_purge: Collection[Entry]
) -> list[Entry]:
    """Compactions and topic indexes on any branch that a model may have written from one of these entries."""
    entry_keys = {(entry.branch, entry.seq) for entry in to_purge}
    summaries: list[Entry] = []
    for branch in all_branches:
        for entry in reads.read_control_entries(connection, tenant, branch, last=branch.head_seq):
            body = entry._replace(content_digest=None).body
            is_candidate = entry.branch == branch.number and (entry.branch, entry.seq) not in entry_keys
            if not is_candidate or not isinstance(body, Compaction | TopicIndex):
                continue
            has_read = body.summarizes if isinstance(body, Compaction) else body.covers.__contains__
            if any(has_read(seq) and branch.find_owner(seq) == owner for owner, seq in entry_keys):
                summaries.append(entry)
    return summaries


def _purge(
    connection: Connection, tenant: str, all_branches: Sequence[Branch], to_purge: Sequence[Entry], *, whole: bool
) -> list[Entry]:
    """Erases the content of these entries and what was derived from it."""
    conversation = all_branches[0].conversation
    # Without the digest, content that was changed can be purged too.
    to_purge = [entry._replace(content_digest=None) for entry in to_purge]
    purged: list[Entry] = []
    seqs_by_branch: defaultdict[int, list[int]] = defaultdict(list)
    for entry in to_purge:
        body = purge_body(entry.body)
        raw = body.canonical_json()
        if isinstance(body, Message) or (raw, None) != (entry.raw, entry.raw_metadata):
            entry = entry._replace(raw=raw, raw_metadata=None, tokens=None, counter=None, purged_at=now())
        purged.append(entry)
        seqs_by_branch[entry.branch].append(entry.seq)
    if purged:
        rows = [
            {
                "of_tenant": tenant,
                "of_conversation": conversation,
                "of_branch": entry.branch,
                "of_seq": entry.seq,
                "body": entry.raw,
                "notes": entry.raw_metadata,
                "tokens": entry.tokens,
                "counter": entry.counter,
                "purged_at": entry.purged_at,
            }
            for entry in purged
        ]
        connection.execute(_OVERWRITE_ENTRY, rows)
    for branch, seqs in seqs_by_branch.items():
        blobs.delete_blob_uses(connection, tenant, conversation, branch=branch, seqs=seqs)

    if whole:
        _erase_decision_names(connection, tenant, conversation, lambda row: True)
    else:
        # Manifests name the documents of messages by link and path.
        references = [reference for entry in to_purge for reference in entry.metadata.references or ()]
        names = {name for reference in references for name in (reference.link, reference.path) if name is not None}
        if names:
            _erase_decision_names(
                connection, tenant, conversation, lambda row: row.kind == "document" and row.name in names
            )

    # Words leave the index by the text that the entries had.
    erase_messages(connection, tenant, all_branches, to_purge)
    entry_keys = {(entry.branch, entry.seq) for entry in to_purge}
    purged_memories = memories.purge_memories(connection, tenant, conversation, None if whole else entry_keys)
    _purge_memory_quotes(connection, tenant, purged_memories)
    transcripts.delete_linked(connection, tenant, conversation)
    # Requests that were not understood belong to no conversation: any of them may repeat what is purged.
    for each in (conversation, NO_CONVERSATION):
        delete_exchanges(connection, tenant, each)
    reset_usage(connection, tenant, conversation)
    delete_observations(connection, tenant, conversation)
    turn_events.delete_conversation_events(connection, tenant, conversation)
    turn_leases.delete_outcomes(connection, tenant, conversation)
    _delete_background_requests(connection, tenant, conversation)
    blobs.delete_orphan_blobs(connection, tenant)
    return purged


_OVERWRITE_ENTRY = (
    update(entries)
    .where(
        entries.c.tenant == bindparam("of_tenant"),
        entries.c.conversation == bindparam("of_conversation"),
        entries.c.branch == bindparam("of_branch"),
        entries.c.seq == bindparam("of_seq"),
    )
    .values({name: bindparam(name) for name in ("body", "notes", "tokens", "counter", "purged_at")})
)


def _erase_decision_names(
    connection: Connection, tenant: str, conversation: str, is_purged: Callable[[Decision], bool]
) -> None:
    """Erases the names in these decisions of the conversation's manifests."""
    rows: list[dict[str, object]] = []
    for stored in ledger.list_manifest_rows(connection, tenant, conversation, lock=True):
        manifest = Manifest.parse(stored["manifest"])
        decisions = tuple(
            row.model_copy(update={"name": PURGED_TEXT}) if row.name is not None and is_purged(row) else row
            for row in manifest.decisions
        )
        erased = manifest.model_copy(update={"decisions": decisions}).canonical_json()
        if erased != stored["manifest"]:
            row = with_row_digest(manifests, {**stored, "manifest": erased})
            key = {f"of_{name}": row[name] for name in ("tenant", "conversation", "branch", "seq")}
            rows.append({**key, "manifest": erased, ROW_DIGEST: row[ROW_DIGEST]})
    if rows:
        connection.execute(_OVERWRITE_MANIFEST, rows)


_OVERWRITE_MANIFEST = (
    update(manifests)
    .where(
        manifests.c.tenant == bindparam("of_tenant"),
        manifests.c.conversation == bindparam("of_conversation"),
        manifests.c.branch == bindparam("of_branch"),
        manifests.c.seq == bindparam("of_seq"),
    )
    .values(manifest=bindparam("manifest"), row_digest=bindparam(ROW_DIGEST))
)


def _purge_memory_quotes(connection: Connection, tenant: str, purged: Iterable[Memory]) -> None:
    """Deletes blobs in which requests contained these memories. Blobs with the same text from other sources stay."""
    with_manifest = (
        select(blob_uses.c.conversation, blob_uses.c.branch, blob_uses.c.seq, manifests.c.manifest)
        .join(
            manifests,
            (manifests.c.tenant == blob_uses.c.tenant)
            & (manifests.c.conversation == blob_uses.c.conversation)
            & (manifests.c.branch == blob_uses.c.branch)
            & (manifests.c.seq == blob_uses.c.seq),
        )
        .where(blob_uses.c.tenant == tenant)
    )
    for memory in purged:
        for digest in [row["digest"] for row in _find_rows(connection, tenant, schema.blobs, [memory.text])]:
            users = select(blob_uses.c.conversation).where(blob_uses.c.tenant == tenant, blob_uses.c.digest == digest)
            reads.check_in_database(connection, tenant, connection.execute(users).scalars().all())
            uses = connection.execute(with_manifest.where(blob_uses.c.digest == digest)).all()
            for conversation, branch, seq, manifest in uses:
                included = Manifest.parse(manifest).included
                if any(row.kind == "memory" and row.blob == digest.hex() for row in included):
                    connection.execute(
                        delete(blob_uses).where(
                            blob_uses.c.tenant == tenant,
                            blob_uses.c.digest == digest,
                            blob_uses.c.conversation == conversation,
                            blob_uses.c.branch == branch,
                            blob_uses.c.seq == seq,
                        )
                    )
                    delete_exchanges(connection, tenant, conversation)
            blobs.delete_unused_blobs(connection, tenant, [digest])


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


def find_holding_blobs(connection: Connection, tenant: str, forms: Sequence[str]) -> list[str]:
    """Digests, in hexadecimal, of the blobs in the database with one of these texts."""
    return [row["digest"].hex() for row in _find_rows(connection, tenant, schema.blobs, forms)]


def find_value(connection: Connection, tenant: str, value: str) -> dict[str, list[ValueRow]]:
    """Rows of the tenant that contain the value, by table."""
    if not MIN_VALUE_CHARS <= len(value) <= MAX_VALUE_CHARS:
        raise InvalidRequest(
            f"A value to purge has {MIN_VALUE_CHARS} to {MAX_VALUE_CHARS} characters, not {len(value)}; give all of it."
        )
    forms = list_written_forms(value)
    # A message contains the value of its attachment, whose digest it holds.
    holding_blobs = _find_rows(connection, tenant, schema.blobs, forms)
    entry_forms = [*forms, *(row["digest"].hex() for row in holding_blobs)]
    found = {
        table.name: _find_rows(connection, tenant, table, entry_forms if table is entries else forms)
        for table in metadata.sorted_tables
        if "tenant" in table.c and table is not schema.blobs
    }
    keys = {(row["conversation"], row["exchange"]) for row in found[schema.exchanges.name]}
    for conversation in list_conversations(connection, tenant):
        reader = ExchangeReader(connection, tenant, conversation)
        keys |= {(conversation, key) for key in reader.find_values([form.encode() for form in forms])}
    found[schema.exchanges.name] = [
        {"tenant": tenant, "conversation": conversation, "exchange": key} for conversation, key in sorted(keys)
    ]
    return {name: rows for name, rows in (found | {schema.blobs.name: holding_blobs}).items() if rows}


def erase_value(connection: Connection, tenant: str, value: str) -> ValuePurge:
    """Erases this text, such as a leaked key, from every row of the tenant."""
    found = find_value(connection, tenant, value)
    by_conversation: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for row in found.pop(entries.name, ()):
        by_conversation[row["conversation"]].add((row["branch"], row["seq"]))
    purged: list[tuple[str, int, int]] = []
    for conversation, entry_keys in sorted(by_conversation.items()):
        all_branches = conversations.lock_branches(connection, tenant, conversation)
        to_purge = [
            entry
            for branch in all_branches
            for entry in reads.read_entries(
                connection, tenant, branch, [seq for owner, seq in entry_keys if owner == branch.number]
            )
            if entry.branch == branch.number
        ]
        to_purge += _find_summaries(connection, tenant, all_branches, to_purge)
        erased = _purge(connection, tenant, all_branches, to_purge, whole=False)
        if any(entry.kind == "context_change" for entry in erased):
            conversations.fold_session_items(connection, tenant, conversation)
        purged += [(entry.conversation, entry.branch, entry.seq) for entry in erased]
    counts: dict[str, int] = {}
    for name, rows in found.items():
        if _clear_texts(connection, tenant, name, rows, value) or _delete_rows(connection, tenant, name, rows):
            counts[name.removeprefix("quire_")] = len(rows)
    remaining = find_value(connection, tenant, value)
    recount_bytes(connection, tenant)
    return ValuePurge(tuple(purged), counts, tuple(name.removeprefix("quire_") for name in remaining))


def _find_rows(connection: Connection, tenant: str, table: Table, forms: Sequence[str]) -> list[ValueRow]:
    """Rows of a table with one of these texts in any column. The database compares, unless the tenant is encrypted."""
    is_text = (Text, SealedText)
    columns = [each for each in table.c if isinstance(each.type, is_text) and each.name != "tenant"]
    if table is schema.blobs:
        columns.append(schema.blobs.c.data)
    if not columns:
        return []
    if is_encrypting():
        keys = [column.name for column in table.primary_key]
        query = select(*{column.name: column for column in (*table.primary_key, *columns)}.values())
        in_parts = query.where(table.c.tenant == tenant).execution_options(yield_per=_ROWS_PER_READ)
        found: list[ValueRow] = []
        for rows in connection.execute(in_parts).mappings().partitions():
            found += [
                {name: row[name] for name in keys}
                for row in rows
                if any(_has_form(row[column.name], forms) for column in columns)
            ]
            yield_to_event_loop(connection)
        return found
    conditions: list[ColumnElement[bool]] = []
    for column in columns:
        for form in forms:
            quote = bindparam(None, form.encode() if column is schema.blobs.c.data else form, type_=column.type)
            if connection.dialect.name == "postgresql":
                conditions.append(func.position(quote.op("IN")(column)) > 0)
            else:
                conditions.append(func.instr(column, quote) > 0)
    query = select(*table.primary_key).where(table.c.tenant == tenant, or_(*conditions))
    return [dict(row) for row in connection.execute(query).mappings()]


def _has_form(value: str | bytes | None, forms: Sequence[str]) -> bool:
    if isinstance(value, bytes):
        return any(form.encode() in value for form in forms)
    return value is not None and any(form in value for form in forms)


def _clear_texts(connection: Connection, tenant: str, table_name: str, rows: Sequence[ValueRow], value: str) -> bool:
    """Clears the value in rows that have to stay. Returns whether the rows of this table do."""
    match table_name:
        case schema.conversations.name:
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
        case schema.branches.name:
            for row in rows:
                branch = conversations.get_branch(connection, tenant, row["conversation"], row["branch"])
                if value in branch.name:
                    conversations.reset_branch_name(connection, tenant, branch.conversation, branch.number)
        case schema.manifests.name:
            for conversation in sorted({row["conversation"] for row in rows}):
                _erase_decision_names(
                    connection, tenant, conversation, lambda row: row.name is not None and value in row.name
                )
                reset_usage(connection, tenant, conversation)
        case _:
            return False
    return True


def _delete_background_requests(connection: Connection, tenant: str, conversation: str) -> None:
    """Deletes what earlier versions stored of requests that they answered later."""
    columns = schema.background_responses.c
    connection.execute(
        delete(schema.background_responses).where(columns.tenant == tenant, columns.conversation == conversation)
    )


_DELETED_WITH_CONVERSATION = {
    schema.turn_leases.name: turn_leases.delete_outcomes,
    schema.turn_events.name: turn_events.delete_conversation_events,
    schema.background_responses.name: _delete_background_requests,
    # What is left of the conversations is counted again. Totals and pairs have the names of contributions alone.
    usage_contributions.name: reset_usage,
    schema.exchanges.name: delete_exchanges,
    schema.observations.name: delete_observations,
}
"""Tables whose rows of a conversation are deleted together."""


def _delete_rows(connection: Connection, tenant: str, table_name: str, rows: Sequence[ValueRow]) -> bool:
    """Deletes rows that are derived or hold nothing but content. Returns whether this table has such rows.

    A memory only loses its text.
    """
    match table_name:
        case schema.memories.name:
            to_purge = [memories.lock_memory(connection, tenant, row["memory"]) for row in rows]
            memories.erase_memories(connection, tenant, to_purge)
        case schema.passages.name:
            for row in rows:
                passages.delete_passages(connection, tenant, row["scope"], [row["key"]])
        case schema.documents.name:
            # The index alone; a file that still contains the value is indexed again.
            for row in rows:
                delete_documents(connection, tenant, row["vault"], [row["path"]])
        case schema.transcripts.name | schema.transcript_lines.name:
            keys = {transcripts.TranscriptKey(row["project"], row["session"], row["subpath"]) for row in rows}
            transcripts.delete_exact(connection, tenant, keys)
        case schema.blobs.name:
            for row in rows:
                is_row = (blob_uses.c.tenant == tenant, blob_uses.c.digest == row["digest"])
                connection.execute(delete(blob_uses).where(*is_row))
                blobs.delete_blobs(connection, tenant, schema.blobs.c.digest == row["digest"])
        case _ if table_name in _DELETED_WITH_CONVERSATION:
            for conversation in sorted({row["conversation"] for row in rows}):
                _DELETED_WITH_CONVERSATION[table_name](connection, tenant, conversation)
        case _:
            return False
    return True


def purge_tenant(connection: Connection, tenant: str) -> TenantPurge:
    """Deletes every row of the tenant, with its keys, costs and audit trail.

    On PostgreSQL only the owner of the tables may do that: the role of the application cannot delete entries.
    """
    # Each before those that it refers to.
    tables = [table for table in reversed(metadata.tables.values()) if "tenant" in table.c]
    rows = {table: connection.execute(delete(table).where(table.c.tenant == tenant)).rowcount for table in tables}
    return TenantPurge(conversations=rows[schema.conversations], rows=sum(rows.values()))
