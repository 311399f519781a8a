"""Initial schema: log, ledger, search index, usage roll-up, memories, vault documents, API keys and sweeps.

PostgreSQL only: tables that grow with conversations have hash partitions, and row-level security isolates tenants for
every role except superusers, the tables' owner included. PostgreSQL's full-text search is not used: under row-level
security a condition uses an index only if its operator is leakproof, and none of GIN's operators is.
"""

from alembic import op

from quire.db.migrate import VERSION_TABLE
from quire.db.migrations.tenancy import build_partitions, build_row_security

revision = "0001"
down_revision = None

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
}
"""Tables with hash partitions on PostgreSQL, and the column that selects the partition."""

UNPARTITIONED_TABLES = (
    "conversations",
    "branches",
    "blobs",
    "blob_uses",
    "transcripts",
    "transcript_lines",
    "calibrations",
    "costs",
    "spending",
    "spend_reservations",
    "turn_leases",
    "search_scopes",
    "unindexed_branches",
    "memories",
    "documents",
    "api_keys",
    "uncounted_branches",
    "counted_branches",
    "usage_totals",
    "document_pairs",
    "backtests",
    "backtest_shards",
    "turn_events",
    "rate_limits",
)
"""The other tables with a tenant column. `quire_sweeps` has none: it covers all tenants."""

UNLOGGED_TABLES = ("turn_events", "rate_limits")
"""Tables whose rows live for seconds and may be lost: on PostgreSQL they are not in the write-ahead log."""

SWEEP_SETTING = "quire.sweep"
"""Set only inside functions that read rows of all tenants; setting it elsewhere has an effect only for the owner."""

PRESENTED_KEY = "id = NULLIF(current_setting('quire.key_id', true), '')"
"""Before authentication the tenant is unknown: the transaction sees only the row of the key that was presented."""

_ADD_OLDEST_READER = f"ALTER TABLE {VERSION_TABLE} ADD COLUMN oldest_reader TEXT NOT NULL DEFAULT '{revision}'"
"""Alembic's own table has one row, so the oldest version whose code can use the schema is a column there."""


def upgrade() -> None:
    op.execute(_ADD_OLDEST_READER)
    if op.get_bind().dialect.name != "postgresql":
        for statement in (*_tables(key="TEXT", big="INTEGER", bytes_="BLOB").values(), *_INDEXES):
            op.execute(statement)
        return
    statements: list[str] = []
    for name, statement in _tables(key='TEXT COLLATE "C"', big="BIGINT", bytes_="BYTEA").items():
        if name in UNLOGGED_TABLES:
            statements.append(statement.replace("CREATE TABLE", "CREATE UNLOGGED TABLE"))
        elif name in PARTITIONED_TABLES:
            statements.append(f"{statement} PARTITION BY HASH ({PARTITIONED_TABLES[name]})")
        else:
            statements.append(statement)
    # Packed bytes are stored uncompressed: compressing them again costs time and saves nothing.
    packed = {"passages": ["vector"], "terms": ["postings"], "message_segments": ["columns", "terms"]}
    statements += [
        f"ALTER TABLE quire_{table} ALTER COLUMN {column} SET STORAGE EXTERNAL"
        for table, columns in packed.items()
        for column in columns
    ]
    # Appends rewrite these rows without touching indexed columns: free space on the page allows HOT updates.
    statements += [f"ALTER TABLE quire_{table} SET (fillfactor = 50)" for table in ("branches", "spending")]
    partitions: list[str] = []
    for table in PARTITIONED_TABLES:
        names, partition_statements = build_partitions(table)
        partitions += names
        statements += partition_statements
    statements += _INDEXES
    statements += build_row_security(*UNPARTITIONED_TABLES, *PARTITIONED_TABLES, *partitions)
    statements.append(f"CREATE POLICY presented_key ON quire_api_keys FOR SELECT USING ({PRESENTED_KEY})")
    schema = op.get_bind().exec_driver_sql("SELECT current_schema()").scalar_one()
    statements += _sweep_function(schema) + _heads_function(schema)
    for statement in statements:
        op.execute(statement)


def _sweep_function(schema: str) -> list[str]:
    """A function that lists which conversation of which tenant was updated when.

    It runs as the owner (SECURITY DEFINER), and only while it runs does the owner see the rows of all tenants.
    """
    quoted = '"' + schema.replace('"', '""') + '"'
    return [
        f"""
        CREATE POLICY sweep ON quire_conversations FOR SELECT TO CURRENT_USER
        USING (current_setting('{SWEEP_SETTING}', true) = 'on')""",
        # Not a SET clause of the function: only a superuser may name a setting there that no extension defines.
        f"""
        CREATE FUNCTION quire_list_updated_conversations(
            since bigint, after_tenant text, after_conversation text, until bigint, max_rows integer
        )
        RETURNS TABLE (tenant text, conversation text, updated_at bigint)
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = {quoted}, pg_temp
        AS $$
        BEGIN
            PERFORM set_config('{SWEEP_SETTING}', 'on', true);
            RETURN QUERY
                SELECT c.tenant, c.conversation, c.updated_at FROM quire_conversations AS c
                WHERE c.updated_at BETWEEN since AND until
                AND (c.updated_at, c.tenant, c.conversation) > (since, after_tenant, after_conversation)
                ORDER BY c.updated_at, c.tenant, c.conversation LIMIT max_rows;
            PERFORM set_config('{SWEEP_SETTING}', '', true);
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and a constant)
        "REVOKE ALL ON FUNCTION quire_list_updated_conversations FROM PUBLIC",
    ]


def _heads_function(schema: str) -> list[str]:
    """A function that lists the heads of the branches of these conversations, like `_sweep_function`."""
    quoted = '"' + schema.replace('"', '""') + '"'
    return [
        f"""
        CREATE POLICY sweep ON quire_branches FOR SELECT TO CURRENT_USER
        USING (current_setting('{SWEEP_SETTING}', true) = 'on')""",
        f"""
        CREATE FUNCTION quire_list_branch_heads(tenants text[], conversations text[])
        RETURNS TABLE (tenant text, conversation text, branch integer, head_seq bigint)
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = {quoted}, pg_temp
        AS $$
        BEGIN
            PERFORM set_config('{SWEEP_SETTING}', 'on', true);
            RETURN QUERY
                SELECT b.tenant, b.conversation, b.branch, b.head_seq
                FROM unnest(tenants, conversations) AS watched (tenant, conversation)
                JOIN quire_branches AS b ON b.tenant = watched.tenant AND b.conversation = watched.conversation;
            PERFORM set_config('{SWEEP_SETTING}', '', true);
        END
        $$""",  # noqa: S608 (the inserted texts are the schema's quoted name and a constant)
        "REVOKE ALL ON FUNCTION quire_list_branch_heads FROM PUBLIC",
    ]


_INDEXES = (
    "CREATE INDEX quire_conversations_by_updated_at ON quire_conversations (tenant, updated_at, conversation)",
    """
    CREATE INDEX quire_conversations_by_updated_at_all_tenants
    ON quire_conversations (updated_at, tenant, conversation)""",
    """
    CREATE INDEX quire_conversations_by_session ON quire_conversations (tenant, session, updated_at, conversation)
    WHERE session IS NOT NULL""",
    "CREATE INDEX quire_conversations_by_project ON quire_conversations (tenant, project) WHERE project IS NOT NULL",
    """
    CREATE INDEX quire_entries_control ON quire_entries (tenant, conversation, branch, seq)
    WHERE kind <> 'message'""",
    "CREATE INDEX quire_blobs_by_uploaded_at ON quire_blobs (tenant, uploaded_at) WHERE uploaded_at IS NOT NULL",
    "CREATE INDEX quire_blob_uses_by_digest ON quire_blob_uses (tenant, digest)",
    """
    CREATE INDEX quire_manifests_by_request_id ON quire_manifests (tenant, request_id)
    WHERE request_id IS NOT NULL""",
    """
    CREATE INDEX quire_manifests_by_response_id ON quire_manifests (tenant, response_id)
    WHERE response_id IS NOT NULL""",
    """
    CREATE INDEX quire_transcripts_by_conversation ON quire_transcripts (tenant, conversation)
    WHERE conversation IS NOT NULL""",
    """
    CREATE UNIQUE INDEX quire_transcript_lines_by_uuid
    ON quire_transcript_lines (tenant, project, session, subpath, uuid) WHERE uuid IS NOT NULL""",
    "CREATE UNIQUE INDEX quire_passages_by_number ON quire_passages (tenant, scope, number)",
    "CREATE INDEX quire_passages_by_embedder ON quire_passages (tenant, scope, embedder, number)",
    "CREATE INDEX quire_message_segments_by_revision ON quire_message_segments (tenant, revision)",
    "CREATE INDEX quire_memories_by_namespace ON quire_memories (tenant, namespace, created_at, memory)",
    "CREATE INDEX quire_memories_by_message ON quire_memories (tenant, conversation, branch, seq)",
    "CREATE UNIQUE INDEX quire_api_keys_by_id ON quire_api_keys (id)",
    """
    CREATE INDEX quire_usage_turns_by_cost
    ON quire_usage_turns (tenant, cost_nanos, tokens, conversation, branch, seq, day)""",
    "CREATE INDEX quire_document_pairs_by_count ON quire_document_pairs (tenant, conversations, first, second)",
)


def _tables(*, key: str, big: str, bytes_: str) -> dict[str, str]:
    types = {"key": key, "big": big, "bytes_": bytes_}
    return (
        _log_tables(**types)
        | _ledger_tables(**types)
        | _search_tables(**types)
        | _server_tables(**types)
        | _usage_tables(key=key, big=big)
    )


def _clustered(big: str) -> str:
    """Stores rows in the primary key's B-tree on SQLite."""
    return "" if big == "BIGINT" else "WITHOUT ROWID"


def _log_tables(*, key: str, big: str, bytes_: str) -> dict[str, str]:
    return {
        "conversations": f"""
        CREATE TABLE quire_conversations (
            tenant {key} NOT NULL, conversation {key} NOT NULL,
            title TEXT NOT NULL, created_at {big} NOT NULL, updated_at {big} NOT NULL, purged_at {big},
            client {key}, session {key}, project {key}, agent {key}, parent_agent {key}, purpose {key},
            row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation)
        )""",
        "branches": f"""
        CREATE TABLE quire_branches (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL,
            name TEXT NOT NULL, created_at {big} NOT NULL, lineage TEXT NOT NULL,
            head_seq {big} NOT NULL, head_digest {bytes_} NOT NULL, head_path {bytes_} NOT NULL, state TEXT NOT NULL,
            updated_at {big} NOT NULL, row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch)
        )""",
        "entries": f"""
        CREATE TABLE quire_entries (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            kind TEXT NOT NULL, role TEXT, author TEXT NOT NULL, at {big} NOT NULL,
            digest {bytes_} NOT NULL, path {bytes_} NOT NULL, tokens INTEGER, counter TEXT,
            body TEXT NOT NULL, notes TEXT, purged_at {big}, content_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, seq)
        )""",
        "paths": f"""
        CREATE TABLE quire_paths (
            tenant {key} NOT NULL, path {bytes_} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL,
            seq {big} NOT NULL,
            PRIMARY KEY (tenant, path, conversation, branch)
        ) {_clustered(big)}""",
        "blobs": f"""
        CREATE TABLE quire_blobs (
            tenant {key} NOT NULL, digest {bytes_} NOT NULL, media_type TEXT NOT NULL, data {bytes_} NOT NULL,
            uploaded_at {big},
            PRIMARY KEY (tenant, digest)
        )""",
        "blob_uses": f"""
        CREATE TABLE quire_blob_uses (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, seq, digest),
            FOREIGN KEY (tenant, digest) REFERENCES quire_blobs (tenant, digest)
        ) {_clustered(big)}""",
    }


def _ledger_tables(*, key: str, big: str, bytes_: str) -> dict[str, str]:
    return {
        "manifests": f"""
        CREATE TABLE quire_manifests (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            manifest TEXT NOT NULL, request_id {key}, response_id {key}, row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, seq)
        )""",
        "imports": f"""
        CREATE TABLE quire_imports (
            tenant {key} NOT NULL, conversation {key} NOT NULL, item {key} NOT NULL, digest {bytes_} NOT NULL,
            branch INTEGER NOT NULL, seq {big} NOT NULL,
            PRIMARY KEY (tenant, conversation, item, digest)
        ) {_clustered(big)}""",
        "transcripts": f"""
        CREATE TABLE quire_transcripts (
            tenant {key} NOT NULL, project {key} NOT NULL, session {key} NOT NULL, subpath {key} NOT NULL,
            conversation {key}, line_count {big} NOT NULL, modified_at {big} NOT NULL, summary TEXT,
            row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, project, session, subpath)
        )""",
        "transcript_lines": f"""
        CREATE TABLE quire_transcript_lines (
            tenant {key} NOT NULL, project {key} NOT NULL, session {key} NOT NULL, subpath {key} NOT NULL,
            number {big} NOT NULL, uuid {key}, line TEXT NOT NULL, row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, project, session, subpath, number)
        )""",
        "calibrations": f"""
        CREATE TABLE quire_calibrations (
            tenant {key} NOT NULL, model {key} NOT NULL, calibration TEXT NOT NULL, row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, model)
        )""",
        "costs": f"""
        CREATE TABLE quire_costs (
            tenant {key} NOT NULL, conversation {key} NOT NULL, key_id {key} NOT NULL,
            cost_usd DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (tenant, conversation, key_id)
        )""",
        "spending": f"""
        CREATE TABLE quire_spending (
            tenant {key} NOT NULL, key_id {key} NOT NULL, shard INTEGER NOT NULL, cost_usd DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (tenant, key_id, shard)
        )""",
        "spend_reservations": f"""
        CREATE TABLE quire_spend_reservations (
            tenant {key} NOT NULL, reservation {key} NOT NULL, conversation {key} NOT NULL, key_id {key} NOT NULL,
            amount_usd DOUBLE PRECISION NOT NULL, expires_at {big} NOT NULL,
            PRIMARY KEY (tenant, reservation)
        )""",
    }


def _search_tables(*, key: str, big: str, bytes_: str) -> dict[str, str]:
    return {
        "passages": f"""
        CREATE TABLE quire_passages (
            tenant {key} NOT NULL, scope {key} NOT NULL, key {key} NOT NULL, part INTEGER NOT NULL,
            number {big} NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, digest {bytes_} NOT NULL, at {big},
            embedder {key}, vector {bytes_},
            PRIMARY KEY (tenant, scope, key, part)
        )""",
        "terms": f"""
        CREATE TABLE quire_terms (
            tenant {key} NOT NULL, scope {key} NOT NULL, term {key} NOT NULL, block {big} NOT NULL,
            postings {bytes_} NOT NULL,
            PRIMARY KEY (tenant, scope, term, block)
        ) {_clustered(big)}""",
        "search_scopes": f"""
        CREATE TABLE quire_search_scopes (
            tenant {key} NOT NULL, scope {key} NOT NULL, next_number {big} NOT NULL, passage_count {big} NOT NULL,
            revision {big} NOT NULL, format INTEGER NOT NULL,
            PRIMARY KEY (tenant, scope)
        )""",
        "message_segments": f"""
        CREATE TABLE quire_message_segments (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, segment INTEGER NOT NULL,
            number {big} NOT NULL, revision {big} NOT NULL, last_seq {big} NOT NULL, erasures INTEGER NOT NULL,
            format INTEGER NOT NULL, embedder {key}, columns {bytes_} NOT NULL, terms {bytes_} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, segment)
        )""",
        "unindexed_branches": f"""
        CREATE TABLE quire_unindexed_branches (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, last_seq {big} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch)
        ) {_clustered(big)}""",
        "memories": f"""
        CREATE TABLE quire_memories (
            tenant {key} NOT NULL, memory {key} NOT NULL, namespace {key} NOT NULL, text TEXT NOT NULL,
            conversation {key}, branch INTEGER, seq {big}, source TEXT,
            created_at {big} NOT NULL, retired_at {big}, replaced_by {key}, row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, memory)
        )""",
        "documents": f"""
        CREATE TABLE quire_documents (
            tenant {key} NOT NULL, vault {key} NOT NULL, path {key} NOT NULL,
            digest {bytes_} NOT NULL, size {big} NOT NULL, modified_ns {big} NOT NULL,
            title TEXT NOT NULL, summary TEXT NOT NULL, aliases TEXT NOT NULL, headings TEXT NOT NULL,
            row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, vault, path)
        )""",
    }


def _server_tables(*, key: str, big: str, bytes_: str) -> dict[str, str]:
    return {
        "turn_leases": f"""
        CREATE TABLE quire_turn_leases (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL,
            turn {key} NOT NULL, owner TEXT NOT NULL, after_seq {big}, question_digest {bytes_},
            expires_at {big} NOT NULL, stop_requested INTEGER NOT NULL, pending_call TEXT, approval TEXT,
            is_approved INTEGER, outcome TEXT,
            PRIMARY KEY (tenant, conversation, branch)
        )""",
        "api_keys": f"""
        CREATE TABLE quire_api_keys (
            tenant {key} NOT NULL, id {key} NOT NULL, name TEXT NOT NULL, digest {bytes_} NOT NULL,
            scopes TEXT NOT NULL, requests_per_minute INTEGER, max_spend DOUBLE PRECISION, models TEXT,
            created_at {big} NOT NULL, expires_at {big}, revoked_at {big}, row_digest {bytes_} NOT NULL,
            PRIMARY KEY (tenant, id)
        )""",
        "turn_events": f"""
        CREATE TABLE quire_turn_events (
            tenant {key} NOT NULL, conversation {key} NOT NULL, turn {key} NOT NULL, number INTEGER NOT NULL,
            events TEXT NOT NULL, expires_at {big} NOT NULL,
            PRIMARY KEY (tenant, conversation, turn, number)
        )""",
        "rate_limits": f"""
        CREATE TABLE quire_rate_limits (
            tenant {key} NOT NULL, key_id {key} NOT NULL, tokens DOUBLE PRECISION NOT NULL,
            granted DOUBLE PRECISION NOT NULL, updated_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (tenant, key_id)
        )""",
        "backtests": f"""
        CREATE TABLE quire_backtests (
            tenant {key} NOT NULL, backtest {key} NOT NULL, created_at {big} NOT NULL, updated_at {big} NOT NULL,
            spec TEXT NOT NULL, conversations INTEGER NOT NULL, finished INTEGER NOT NULL, totals TEXT, failure TEXT,
            PRIMARY KEY (tenant, backtest)
        )""",
        "backtest_shards": f"""
        CREATE TABLE quire_backtest_shards (
            tenant {key} NOT NULL, backtest {key} NOT NULL, shard INTEGER NOT NULL,
            selection TEXT NOT NULL, attempts INTEGER NOT NULL, done DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (tenant, backtest, shard)
        )""",
        "sweeps": f"CREATE TABLE quire_sweeps (name {key} NOT NULL PRIMARY KEY, swept_until {big} NOT NULL)",
    }


def _usage_tables(*, key: str, big: str) -> dict[str, str]:
    names = """turns requests input_tokens output_tokens cache_read_tokens cache_write_tokens cost_nanos
        unpriced_turns compactions compacted_tokens recalled_messages recalled_tokens candidates uses tokens"""
    counts = ", ".join(f"{name} {big} NOT NULL" for name in names.split())
    branch_table = f"""(
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, last_seq {big} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch)
        ) {_clustered(big)}"""
    return {
        "uncounted_branches": f"CREATE TABLE quire_uncounted_branches {branch_table}",
        "counted_branches": f"CREATE TABLE quire_counted_branches {branch_table}",
        "usage_contributions": f"""
        CREATE TABLE quire_usage_contributions (
            tenant {key} NOT NULL, conversation {key} NOT NULL, dimension {key} NOT NULL, day INTEGER NOT NULL,
            name {key} NOT NULL, {counts},
            PRIMARY KEY (tenant, conversation, dimension, day, name)
        ) {_clustered(big)}""",
        "usage_totals": f"""
        CREATE TABLE quire_usage_totals (
            tenant {key} NOT NULL, dimension {key} NOT NULL, day INTEGER NOT NULL, name {key} NOT NULL, {counts},
            PRIMARY KEY (tenant, dimension, day, name)
        ) {_clustered(big)}""",
        "usage_turns": f"""
        CREATE TABLE quire_usage_turns (
            tenant {key} NOT NULL, conversation {key} NOT NULL, branch INTEGER NOT NULL, seq {big} NOT NULL,
            day INTEGER NOT NULL, model {key} NOT NULL, cost_nanos {big} NOT NULL, tokens {big} NOT NULL,
            PRIMARY KEY (tenant, conversation, branch, seq)
        )""",
        "document_pairs": f"""
        CREATE TABLE quire_document_pairs (
            tenant {key} NOT NULL, first {key} NOT NULL, second {key} NOT NULL, conversations {big} NOT NULL,
            PRIMARY KEY (tenant, first, second)
        ) {_clustered(big)}""",
    }
