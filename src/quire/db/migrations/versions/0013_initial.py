"""The schema on which all later revisions build, as text: changes to `quire.db.schema` do not change what this makes.

In the text `{key}` is a column of a key, `{big}` an integer of 64 bits, and `{data}` bytes.

PostgreSQL only: tables that grow with conversations have hash partitions, and row-level security isolates tenants for
every role except superusers, the tables' owner included. PostgreSQL's full-text search is not used: under row-level
security a condition uses an index only if its operator is leakproof, and none of GIN's operators is.
"""

import re

from alembic import op

from quire.db.migrate import VERSION_TABLE
from quire.db.migrations.tenancy import build_partitions, build_row_security

revision = "0013"
down_revision = None

SQLITE_TYPES = {"key": "TEXT", "big": "INTEGER", "data": "BLOB"}
POSTGRES_TYPES = {"key": 'TEXT COLLATE "C"', "big": "BIGINT", "data": "BYTEA"}

PARTITIONED_TABLES = {
    "entries": "conversation",
    "paths": "path",
    "manifests": "conversation",
    "imports": "conversation",
    "passages": "scope",
    "terms": "scope",
    "message_segments": "conversation",
    "usage_contributions": "conversation",
    "usage_turns": "conversation",
    "request_bodies": "conversation",
}
"""Tables with hash partitions on PostgreSQL, and the column that selects the partition."""

CLUSTERED_TABLES = (
    "paths",
    "blob_uses",
    "imports",
    "terms",
    "unindexed_branches",
    "uncounted_branches",
    "counted_branches",
    "usage_contributions",
    "usage_totals",
    "document_pairs",
)
"""Tables whose rows SQLite stores in the primary key's B-tree."""

UNLOGGED_TABLES = ("turn_events", "rate_limits")
"""Tables whose rows live for seconds and may be lost: on PostgreSQL they are not in the write-ahead log."""

PACKED_COLUMNS = {
    "passages": ("vector",),
    "terms": ("postings",),
    "message_segments": ("columns", "terms"),
    "request_bodies": ("delta",),
}
"""Columns that PostgreSQL stores uncompressed: compressing packed bytes again costs time and saves nothing."""

UPDATED_TABLES = ("branches", "spending")
"""Appends rewrite these rows without touching indexed columns: free space on the page allows HOT updates."""

SWEPT_TABLES = (
    "conversations", "branches", "background_responses", "tenant_keys", "audit_heads", "audit_exports", "archives",
    "pending_objects",
)  # fmt: skip
"""Tables whose rows of all tenants the functions below read."""

SWEEP_SETTING = "quire.sweep"
"""Set only inside functions that read rows of all tenants; setting it elsewhere has an effect only for the owner."""

PRESENTED_KEY = "id = NULLIF(current_setting('quire.key_id', true), '')"
"""Before authentication the tenant is unknown: the transaction sees only the row of the key that was presented."""

TABLES = """
CREATE TABLE quire_conversations (
    tenant {key} NOT NULL, conversation {key} NOT NULL, title TEXT NOT NULL, created_at {big} NOT NULL,
    updated_at {big} NOT NULL, purged_at {big}, client {key}, session {key}, project {key}, agent {key},
    parent_agent {key}, purpose {key}, row_digest {data} NOT NULL, metadata TEXT,
    PRIMARY KEY (tenant, conversation)
);
CREATE TABLE quire_branches (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, name TEXT NOT NULL,
    created_at {big} NOT NULL, lineage TEXT NOT NULL, head_seq {big} NOT NULL, head_digest {data} NOT NULL,
    head_path {data} NOT NULL, state TEXT NOT NULL, updated_at {big} NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch)
);
CREATE TABLE quire_entries (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
    kind TEXT NOT NULL, role TEXT, author TEXT NOT NULL, at {big} NOT NULL, digest {data} NOT NULL,
    path {data} NOT NULL, tokens INTEGER, counter TEXT, body TEXT NOT NULL, notes TEXT, purged_at {big},
    content_digest {data} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch, seq)
);
CREATE TABLE quire_paths (
    tenant {key} NOT NULL, path {data} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL,
    seq {big} NOT NULL,
    PRIMARY KEY (tenant, path, conversation, branch)
);
CREATE TABLE quire_blobs (
    tenant {key} NOT NULL, digest {data} NOT NULL, media_type TEXT NOT NULL, data {data} NOT NULL, uploaded_at {big},
    object TEXT, size {big},
    PRIMARY KEY (tenant, digest)
);
CREATE TABLE quire_blob_uses (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
    digest {data} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch, seq, digest),
    FOREIGN KEY (tenant, digest) REFERENCES quire_blobs (tenant, digest)
);
CREATE TABLE quire_manifests (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
    manifest TEXT NOT NULL, request_id {key}, response_id {key}, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch, seq)
);
CREATE TABLE quire_imports (
    tenant {key} NOT NULL, conversation {key} NOT NULL, item {key} NOT NULL, digest {data} NOT NULL,
    branch INTEGER NOT NULL, seq {big} NOT NULL,
    PRIMARY KEY (tenant, conversation, item, digest)
);
CREATE TABLE quire_transcripts (
    tenant {key} NOT NULL, project {key} NOT NULL, session {key} NOT NULL, subpath {key} NOT NULL, conversation {key},
    line_count {big} NOT NULL, modified_at {big} NOT NULL, summary TEXT, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, project, session, subpath)
);
CREATE TABLE quire_transcript_lines (
    tenant {key} NOT NULL, project {key} NOT NULL, session {key} NOT NULL, subpath {key} NOT NULL,
    number {big} NOT NULL, uuid {key}, line TEXT NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, project, session, subpath, number)
);
CREATE TABLE quire_calibrations (
    tenant {key} NOT NULL, model {key} NOT NULL, calibration TEXT NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, model)
);
CREATE TABLE quire_costs (
    tenant {key} NOT NULL, conversation {key} NOT NULL, key_id {key} NOT NULL, cost_usd DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, conversation, key_id)
);
CREATE TABLE quire_spending (
    tenant {key} NOT NULL, key_id {key} NOT NULL, shard INTEGER NOT NULL, cost_usd DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, key_id, shard)
);
CREATE TABLE quire_spend_reservations (
    tenant {key} NOT NULL, reservation {key} NOT NULL, conversation {key} NOT NULL, key_id {key} NOT NULL,
    amount_usd DOUBLE PRECISION NOT NULL, expires_at {big} NOT NULL, stored_bytes {big} NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, reservation)
);
CREATE TABLE quire_passages (
    tenant {key} NOT NULL, scope {key} NOT NULL, key {key} NOT NULL, part INTEGER NOT NULL, number {big} NOT NULL,
    title TEXT NOT NULL, text TEXT NOT NULL, digest {data} NOT NULL, at {big}, embedder {key}, vector {data},
    PRIMARY KEY (tenant, scope, key, part)
);
CREATE TABLE quire_terms (
    tenant {key} NOT NULL, scope {key} NOT NULL, term {key} NOT NULL, block {big} NOT NULL, postings {data} NOT NULL,
    PRIMARY KEY (tenant, scope, term, block)
);
CREATE TABLE quire_search_scopes (
    tenant {key} NOT NULL, scope {key} NOT NULL, next_number {big} NOT NULL, passage_count {big} NOT NULL,
    revision {big} NOT NULL, format INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope)
);
CREATE TABLE quire_message_segments (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, segment INTEGER NOT NULL,
    number {big} NOT NULL, revision {big} NOT NULL, last_seq {big} NOT NULL, erasures INTEGER NOT NULL,
    format INTEGER NOT NULL, embedder {key}, columns {data} NOT NULL, terms {data} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch, segment)
);
CREATE TABLE quire_unindexed_branches (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, last_seq {big} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch)
);
CREATE TABLE quire_memories (
    tenant {key} NOT NULL, memory {key} NOT NULL, namespace {key} NOT NULL, text TEXT NOT NULL, conversation {key},
    branch INTEGER, seq {big}, source TEXT, created_at {big} NOT NULL, retired_at {big}, replaced_by {key},
    row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, memory)
);
CREATE TABLE quire_documents (
    tenant {key} NOT NULL, vault {key} NOT NULL, path {key} NOT NULL, digest {data} NOT NULL, size {big} NOT NULL,
    modified_ns {big} NOT NULL, title TEXT NOT NULL, summary TEXT NOT NULL, aliases TEXT NOT NULL,
    headings TEXT NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, vault, path)
);
CREATE TABLE quire_turn_leases (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, turn {key} NOT NULL,
    owner TEXT NOT NULL, after_seq {big}, question_digest {data}, expires_at {big} NOT NULL,
    stop_requested INTEGER NOT NULL, pending_call TEXT, approval TEXT, is_approved INTEGER, outcome TEXT,
    PRIMARY KEY (tenant, conversation, branch)
);
CREATE TABLE quire_api_keys (
    tenant {key} NOT NULL, id {key} NOT NULL, name TEXT NOT NULL, digest {data} NOT NULL, scopes TEXT NOT NULL,
    requests_per_minute INTEGER, max_spend DOUBLE PRECISION, models TEXT, created_at {big} NOT NULL, expires_at {big},
    revoked_at {big}, row_digest {data} NOT NULL, created_by {key},
    PRIMARY KEY (tenant, id)
);
CREATE TABLE quire_turn_events (
    tenant {key} NOT NULL, conversation {key} NOT NULL, turn {key} NOT NULL, number INTEGER NOT NULL,
    events TEXT NOT NULL, expires_at {big} NOT NULL,
    PRIMARY KEY (tenant, conversation, turn, number)
);
CREATE TABLE quire_rate_limits (
    tenant {key} NOT NULL, key_id {key} NOT NULL, tokens DOUBLE PRECISION NOT NULL, granted DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, key_id)
);
CREATE TABLE quire_backtests (
    tenant {key} NOT NULL, backtest {key} NOT NULL, created_at {big} NOT NULL, updated_at {big} NOT NULL,
    spec TEXT NOT NULL, conversations INTEGER NOT NULL, finished INTEGER NOT NULL, totals TEXT, failure TEXT,
    PRIMARY KEY (tenant, backtest)
);
CREATE TABLE quire_backtest_shards (
    tenant {key} NOT NULL, backtest {key} NOT NULL, shard INTEGER NOT NULL, selection TEXT NOT NULL,
    attempts INTEGER NOT NULL, done DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, backtest, shard)
);
CREATE TABLE quire_sweeps (
    name {key} NOT NULL PRIMARY KEY, swept_until {big} NOT NULL
);
CREATE TABLE quire_uncounted_branches (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, last_seq {big} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch)
);
CREATE TABLE quire_counted_branches (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, last_seq {big} NOT NULL,
    rules INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, conversation, branch)
);
CREATE TABLE quire_usage_contributions (
    tenant {key} NOT NULL, conversation {key} NOT NULL, dimension {key} NOT NULL, day INTEGER NOT NULL,
    name {key} NOT NULL, turns {big} NOT NULL, requests {big} NOT NULL, input_tokens {big} NOT NULL,
    output_tokens {big} NOT NULL, cache_read_tokens {big} NOT NULL, cache_write_tokens {big} NOT NULL,
    cost_nanos {big} NOT NULL, unpriced_turns {big} NOT NULL, compactions {big} NOT NULL,
    compacted_tokens {big} NOT NULL, recalled_messages {big} NOT NULL, recalled_tokens {big} NOT NULL,
    candidates {big} NOT NULL, uses {big} NOT NULL, tokens {big} NOT NULL,
    unpriced_requests BIGINT NOT NULL DEFAULT 0, unpriced_tokens BIGINT NOT NULL DEFAULT 0,
    imported_nanos BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, conversation, dimension, day, name)
);
CREATE TABLE quire_usage_totals (
    tenant {key} NOT NULL, dimension {key} NOT NULL, day INTEGER NOT NULL, name {key} NOT NULL, turns {big} NOT NULL,
    requests {big} NOT NULL, input_tokens {big} NOT NULL, output_tokens {big} NOT NULL,
    cache_read_tokens {big} NOT NULL, cache_write_tokens {big} NOT NULL, cost_nanos {big} NOT NULL,
    unpriced_turns {big} NOT NULL, compactions {big} NOT NULL, compacted_tokens {big} NOT NULL,
    recalled_messages {big} NOT NULL, recalled_tokens {big} NOT NULL, candidates {big} NOT NULL, uses {big} NOT NULL,
    tokens {big} NOT NULL, unpriced_requests BIGINT NOT NULL DEFAULT 0, unpriced_tokens BIGINT NOT NULL DEFAULT 0,
    imported_nanos BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, dimension, day, name)
);
CREATE TABLE quire_usage_turns (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
    day INTEGER NOT NULL, model {key} NOT NULL, cost_nanos {big} NOT NULL, tokens {big} NOT NULL,
    unpriced_requests BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, conversation, branch, seq)
);
CREATE TABLE quire_document_pairs (
    tenant {key} NOT NULL, first {key} NOT NULL, second {key} NOT NULL, conversations {big} NOT NULL,
    PRIMARY KEY (tenant, first, second)
);
CREATE TABLE quire_request_bodies (
    tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
    base_branch INTEGER, base_seq {big}, size {big} NOT NULL, delta {data} NOT NULL,
    PRIMARY KEY (tenant, conversation, branch, seq)
);
CREATE TABLE quire_stored_bytes (
    tenant {key} NOT NULL, bytes {big} NOT NULL,
    PRIMARY KEY (tenant)
);
CREATE TABLE quire_imported_files (
    tenant {key} NOT NULL, file {data} NOT NULL, size {big} NOT NULL, modified_ns {big} NOT NULL,
    PRIMARY KEY (tenant, file)
);
CREATE TABLE quire_observations (
    tenant {key} NOT NULL, conversation {key} NOT NULL, observations TEXT NOT NULL,
    PRIMARY KEY (tenant, conversation)
);
CREATE TABLE quire_background_responses (
    tenant {key} NOT NULL, response {key} NOT NULL, conversation {key} NOT NULL, created_at {big} NOT NULL,
    request TEXT NOT NULL, outcome TEXT,
    PRIMARY KEY (tenant, response)
);
CREATE TABLE quire_users (
    tenant {key} NOT NULL, id {key} NOT NULL, subject {key} NOT NULL, name TEXT NOT NULL, email TEXT NOT NULL,
    roles TEXT NOT NULL, created_at {big} NOT NULL, confirmed_at {big} NOT NULL, disabled_at {big},
    row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, id), UNIQUE (tenant, subject)
);
CREATE TABLE quire_sessions (
    tenant {key} NOT NULL, digest {data} NOT NULL, user_id {key} NOT NULL, created_at {big} NOT NULL,
    expires_at {big} NOT NULL, refresh_at {big} NOT NULL, tokens TEXT NOT NULL,
    PRIMARY KEY (tenant, digest)
);
CREATE TABLE quire_shares (
    tenant {key} NOT NULL, owner {key} NOT NULL, conversation {key} NOT NULL, reader {key} NOT NULL,
    created_at {big} NOT NULL,
    PRIMARY KEY (tenant, owner, conversation, reader)
);
CREATE TABLE quire_audit (
    tenant {key} NOT NULL, seq {big} NOT NULL, at {big} NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, allowed INTEGER NOT NULL, address TEXT NOT NULL, digest {data} NOT NULL,
    PRIMARY KEY (tenant, seq)
);
CREATE TABLE quire_audit_heads (
    tenant {key} NOT NULL, seq {big} NOT NULL, digest {data} NOT NULL,
    PRIMARY KEY (tenant)
);
CREATE TABLE quire_tenant_keys (
    tenant {key} NOT NULL, key_id TEXT NOT NULL, wrapped {data} NOT NULL, created_at {big} NOT NULL,
    PRIMARY KEY (tenant)
);
CREATE TABLE quire_tenant_cells (
    team {key} NOT NULL PRIMARY KEY, cell TEXT NOT NULL, epoch {big} NOT NULL, state TEXT NOT NULL, peer TEXT,
    move TEXT, started_at {big}
);
CREATE TABLE quire_cell_tenants (
    team {key} NOT NULL PRIMARY KEY, epoch {big} NOT NULL, state TEXT NOT NULL, moved_to TEXT, frozen_until {big},
    move TEXT
);
CREATE TABLE quire_directory_users (
    tenant {key} NOT NULL, id {key} NOT NULL, user_name {key} NOT NULL, resource TEXT NOT NULL,
    created_at {big} NOT NULL, changed_at {big} NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, id), UNIQUE (tenant, user_name)
);
CREATE TABLE quire_directory_groups (
    tenant {key} NOT NULL, id {key} NOT NULL, display_name {key} NOT NULL, external_id {key},
    created_at {big} NOT NULL, changed_at {big} NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE TABLE quire_directory_members (
    tenant {key} NOT NULL, group_id {key} NOT NULL, user_id {key} NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, group_id, user_id)
);
CREATE TABLE quire_audit_exports (
    tenant {key} NOT NULL, seq {big} NOT NULL, claim TEXT NOT NULL, claimed_until {big} NOT NULL,
    PRIMARY KEY (tenant)
);
CREATE TABLE quire_archives (
    tenant {key} NOT NULL, conversation {key} NOT NULL, object TEXT, title TEXT NOT NULL, tokens {big} NOT NULL,
    bytes {big} NOT NULL, changed_at {big} NOT NULL, row_digest {data} NOT NULL,
    PRIMARY KEY (tenant, conversation)
);
CREATE TABLE quire_archived_replies (
    tenant {key} NOT NULL, response_id {key} NOT NULL, conversation {key} NOT NULL,
    PRIMARY KEY (tenant, response_id, conversation)
);
CREATE TABLE quire_pending_objects (
    tenant {key} NOT NULL, object {key} NOT NULL, since {big} NOT NULL,
    PRIMARY KEY (tenant, object)
)
"""

INDEXES = """
CREATE INDEX quire_conversations_by_updated_at ON quire_conversations (tenant, updated_at, conversation);
CREATE INDEX quire_conversations_by_updated_at_all_tenants ON quire_conversations (updated_at, tenant, conversation);
CREATE INDEX quire_conversations_by_session
    ON quire_conversations (tenant, session, updated_at, conversation) WHERE session IS NOT NULL;
CREATE INDEX quire_conversations_by_project ON quire_conversations (tenant, project) WHERE project IS NOT NULL;
CREATE INDEX quire_entries_control ON quire_entries (tenant, conversation, branch, seq) WHERE kind <> 'message';
CREATE INDEX quire_blobs_by_uploaded_at ON quire_blobs (tenant, uploaded_at) WHERE uploaded_at IS NOT NULL;
CREATE INDEX quire_blob_uses_by_digest ON quire_blob_uses (tenant, digest);
CREATE INDEX quire_manifests_by_request_id ON quire_manifests (tenant, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX quire_manifests_by_response_id ON quire_manifests (tenant, response_id) WHERE response_id IS NOT NULL;
CREATE INDEX quire_transcripts_by_conversation
    ON quire_transcripts (tenant, conversation) WHERE conversation IS NOT NULL;
CREATE UNIQUE INDEX quire_transcript_lines_by_uuid
    ON quire_transcript_lines (tenant, project, session, subpath, uuid) WHERE uuid IS NOT NULL;
CREATE UNIQUE INDEX quire_passages_by_number ON quire_passages (tenant, scope, number);
CREATE INDEX quire_passages_by_embedder ON quire_passages (tenant, scope, embedder, number);
CREATE INDEX quire_message_segments_by_revision ON quire_message_segments (tenant, revision);
CREATE INDEX quire_memories_by_namespace ON quire_memories (tenant, namespace, created_at, memory);
CREATE INDEX quire_memories_by_message ON quire_memories (tenant, conversation, branch, seq);
CREATE UNIQUE INDEX quire_api_keys_by_id ON quire_api_keys (id);
CREATE INDEX quire_usage_turns_by_cost
    ON quire_usage_turns (tenant, cost_nanos, tokens, conversation, branch, seq, day);
CREATE INDEX quire_document_pairs_by_count ON quire_document_pairs (tenant, conversations, first, second);
CREATE INDEX quire_imports_item ON quire_imports (tenant, item);
CREATE INDEX quire_counted_branches_outdated ON quire_counted_branches (tenant, conversation) WHERE rules < 2;
CREATE INDEX quire_directory_members_user ON quire_directory_members (tenant, user_id);
CREATE INDEX quire_archives_restored ON quire_archives (tenant, changed_at) WHERE object IS NULL;
CREATE INDEX quire_archived_replies_of ON quire_archived_replies (tenant, conversation)
"""

FUNCTIONS = """
CREATE FUNCTION quire_list_updated_conversations(
    since bigint, after_tenant text, after_conversation text, until bigint, max_rows integer
)
RETURNS TABLE (tenant text, conversation text, updated_at bigint)
{begin_sweep}
    RETURN QUERY
        SELECT c.tenant, c.conversation, c.updated_at FROM quire_conversations AS c
        WHERE c.updated_at BETWEEN since AND until
        AND (c.updated_at, c.tenant, c.conversation) > (since, after_tenant, after_conversation)
        ORDER BY c.updated_at, c.tenant, c.conversation LIMIT max_rows;
{end_sweep};;
CREATE FUNCTION quire_list_branch_heads(tenants text[], conversations text[])
RETURNS TABLE (tenant text, conversation text, branch integer, head_seq bigint)
{begin_sweep}
    RETURN QUERY
        SELECT b.tenant, b.conversation, b.branch, b.head_seq
        FROM unnest(tenants, conversations) AS watched (tenant, conversation)
        JOIN quire_branches AS b ON b.tenant = watched.tenant AND b.conversation = watched.conversation;
{end_sweep};;
CREATE FUNCTION quire_list_unanswered_responses(max_rows integer)
RETURNS TABLE (tenant text, response text)
{begin_sweep}
    RETURN QUERY
        SELECT r.tenant, r.response FROM quire_background_responses AS r
        WHERE r.outcome IS NULL ORDER BY r.created_at LIMIT max_rows;
{end_sweep};;
CREATE FUNCTION quire_list_encrypted_tenants()
RETURNS TABLE (tenant text)
{begin_sweep}
    RETURN QUERY SELECT k.tenant FROM quire_tenant_keys AS k;
{end_sweep};;
CREATE FUNCTION quire_enter_cell(entering text, known_epoch bigint, writes boolean)
RETURNS void
LANGUAGE plpgsql SET search_path = {schema}, pg_temp
AS $$
DECLARE
    found_epoch bigint;
    found_state text;
    ends_at bigint;
BEGIN
    IF writes THEN
        PERFORM pg_advisory_xact_lock_shared(1903520114, hashtext(entering));
    END IF;
    SELECT c.epoch, c.state, c.frozen_until INTO found_epoch, found_state, ends_at
    FROM quire_cell_tenants AS c WHERE c.team = entering;
    IF COALESCE(found_epoch, 0) <> known_epoch OR found_state IN ('arriving', 'moved') THEN
        RAISE EXCEPTION 'the tenant is not in this cell' USING ERRCODE = 'QC001';
    END IF;
    IF writes AND found_state = 'frozen' AND ends_at > extract(epoch FROM clock_timestamp()) * 1000000 THEN
        RAISE EXCEPTION 'the tenant is being moved' USING ERRCODE = 'QC002';
    END IF;
END
$$;;
CREATE FUNCTION quire_list_unexported_audits()
RETURNS TABLE (tenant text)
{begin_sweep}
    RETURN QUERY
        SELECT h.tenant FROM quire_audit_heads AS h
        LEFT JOIN quire_audit_exports AS e ON e.tenant = h.tenant
        WHERE h.seq > COALESCE(e.seq, 0);
{end_sweep};;
CREATE FUNCTION quire_list_object_work(pending_before bigint, restored_before bigint)
RETURNS TABLE (tenant text)
{begin_sweep}
    RETURN QUERY
        SELECT p.tenant FROM quire_pending_objects AS p WHERE p.since < pending_before
        UNION
        SELECT a.tenant FROM quire_archives AS a WHERE a.object IS NULL AND a.changed_at < restored_before;
{end_sweep};;
CREATE FUNCTION quire_delete_offloaded(offloaded text, unneeded_paths bytea[])
RETURNS void
{as_owner}
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM quire_archives WHERE {own_rows} AND object IS NOT NULL) THEN
        RETURN;
    END IF;
    DELETE FROM quire_paths WHERE path = ANY (unneeded_paths) AND {own_rows};
    DELETE FROM quire_entries WHERE {own_rows};
    DELETE FROM quire_manifests WHERE {own_rows};
    DELETE FROM quire_request_bodies WHERE {own_rows};
END
$$
"""
"""Functions of PostgreSQL, separated by `;;`.

Most run as the owner (SECURITY DEFINER), and only while they run does the owner see the rows of all tenants. The
setting is no SET clause of the function: only a superuser may name one there that no extension defines.

The role of the application cannot delete entries, except of a conversation that is recorded as offloaded.
"""


def upgrade() -> None:
    # Alembic's own table has one row, so the oldest version whose code can use the schema is a column there.
    op.execute(f"ALTER TABLE {VERSION_TABLE} ADD COLUMN oldest_reader TEXT NOT NULL DEFAULT '0001'")
    is_postgres = op.get_bind().dialect.name == "postgresql"
    tables = TABLES.format(**(POSTGRES_TYPES if is_postgres else SQLITE_TYPES)).strip().split(";\n")
    names = [re.findall(r"\w+", statement)[2].removeprefix("quire_") for statement in tables]
    indexes = INDEXES.strip().split(";\n")
    if not is_postgres:
        for name, statement in zip(names, tables, strict=True):
            op.execute(f"{statement} WITHOUT ROWID" if name in CLUSTERED_TABLES else statement)
        for statement in indexes:
            op.execute(statement)
        return
    statements: list[str] = []
    partitions: list[str] = []
    for name, statement in zip(names, tables, strict=True):
        if name in UNLOGGED_TABLES:
            statements.append(statement.replace("CREATE TABLE", "CREATE UNLOGGED TABLE"))
        elif name in PARTITIONED_TABLES:
            statements.append(f"{statement} PARTITION BY HASH ({PARTITIONED_TABLES[name]})")
        else:
            statements.append(statement)
        # Before the partitions, which take it over.
        statements += [
            f"ALTER TABLE quire_{name} ALTER COLUMN {column} SET STORAGE EXTERNAL"
            for column in PACKED_COLUMNS.get(name, ())
        ]
        if name in PARTITIONED_TABLES:
            made, partition_statements = build_partitions(name)
            partitions += made
            statements += partition_statements
    statements += [f"ALTER TABLE quire_{table} SET (fillfactor = 50)" for table in UPDATED_TABLES]
    of_tenants = [name for name, statement in zip(names, tables, strict=True) if "(\n    tenant " in statement]
    statements += [*indexes, *build_row_security(*of_tenants, *partitions)]
    statements.append(f"CREATE POLICY presented_key ON quire_api_keys FOR SELECT USING ({PRESENTED_KEY})")
    statements += [
        f"CREATE POLICY sweep ON quire_{table} FOR SELECT TO CURRENT_USER "
        f"USING (current_setting('{SWEEP_SETTING}', true) = 'on')"
        for table in SWEPT_TABLES
    ]
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one().replace('"', '""')
    as_owner = f'LANGUAGE plpgsql SECURITY DEFINER SET search_path = "{schema}", pg_temp'
    functions = FUNCTIONS.format(
        schema=f'"{schema}"',
        as_owner=as_owner,
        begin_sweep=f"{as_owner}\nAS $$\nBEGIN\n    PERFORM set_config('{SWEEP_SETTING}', 'on', true);",
        end_sweep=f"    PERFORM set_config('{SWEEP_SETTING}', '', true);\nEND\n$$",
        own_rows="tenant = current_setting('quire.tenant') AND conversation = offloaded",
    )
    for statement in functions.split(";;"):
        name = re.findall(r"\w+", statement)[2]
        statements += [statement, f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC"]
    for statement in statements:
        op.execute(statement)
