"""SQLAlchemy tables, and what the application may do with them. The migrations create them; a test checks that both
agree.

The primary key of every tenant's row begins with the tenant, then the conversation if the row belongs to one.
Times are microseconds since 1970, digests have 32 bytes, bodies are canonical JSON stored as TEXT to preserve their
bytes.
"""

from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Double, Integer, MetaData, Table, Text

from quire.db.column_types import Bytes, SealedBytes, SealedName, SealedScope, SealedTerm, SealedText, bind_places

metadata = MetaData()

ALL_COLUMNS = "*"


@dataclass(frozen=True)
class Rights:
    """What `quire db upgrade --role` grants the application's role on a table on PostgreSQL, besides SELECT."""

    inserts: bool
    updates: tuple[str, ...]
    """The columns that it updates, or `ALL_COLUMNS`."""
    deletes: bool


def grant_rights(*updates: str, inserts: bool = True, deletes: bool = False) -> dict[str, Rights]:
    """The `info` of a table. Without it, the application reads and inserts rows.

    It updates the head of a branch, totals, times, and what a purge overwrites. Nothing else of the log ever changes.
    """
    return {"rights": Rights(inserts, updates, deletes)}


DERIVED = grant_rights(ALL_COLUMNS, deletes=True)
"""Search index and usage roll-up are derived from the log, and may be rewritten."""

FUNCTIONS = (
    "quire_list_updated_conversations", "quire_list_branch_heads", "quire_list_unanswered_responses",
    "quire_list_encrypted_tenants", "quire_list_unexported_audits", "quire_list_object_work", "quire_delete_offloaded",
    "quire_delete_imported",
)  # fmt: skip
"""Functions of PostgreSQL that the application calls: most read or delete what row-level security or the rights above
do not allow it directly."""

conversations = Table(
    "quire_conversations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("title", SealedText, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("purged_at", BigInteger),
    Column("client", Text),
    Column("session", SealedName),
    Column("project", SealedName),
    Column("agent", SealedName),
    Column("parent_agent", SealedName),
    Column("purpose", Text),
    Column("row_digest", Bytes, nullable=False),
    Column("metadata", SealedText),
    info=grant_rights("title", "metadata", "updated_at", "purged_at", "project", "agent", "parent_agent", "row_digest"),
)

branches = Table(
    "quire_branches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("name", SealedText, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("lineage", Text, nullable=False),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_digest", Bytes, nullable=False),
    Column("head_path", Bytes, nullable=False),
    Column("state", SealedText, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("name", "head_seq", "head_digest", "head_path", "state", "updated_at", "row_digest"),
)

entries = Table(
    "quire_entries",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("role", Text),
    Column("author", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("digest", Bytes, nullable=False),
    Column("path", Bytes, nullable=False),
    Column("tokens", Integer),
    Column("counter", Text),
    Column("body", SealedText, nullable=False),
    Column("notes", SealedText),
    Column("purged_at", BigInteger),
    Column("content_digest", Bytes, nullable=False),
    info=grant_rights("body", "notes", "tokens", "counter", "purged_at"),
)

paths = Table(
    "quire_paths",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("path", Bytes, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)
"""The message at the end of each path. Separate from the entries so that it can be partitioned by path: the look-up
finds the conversation, so it cannot filter by it."""

blobs = Table(
    "quire_blobs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", Bytes, primary_key=True),
    Column("media_type", Text, nullable=False),
    Column("data", SealedBytes, nullable=False),
    Column("uploaded_at", BigInteger),
    Column("object", Text),
    Column("size", BigInteger),
    info=grant_rights("uploaded_at", "data", "object", "size", deletes=True),
)
"""`uploaded_at` is set for a blob that was stored before the message that uses it, and may have no references yet. Of a
blob in object storage, `data` is empty, `object` the name of its object and `size` its bytes."""

archives = Table(
    "quire_archives",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("object", Text),
    Column("title", SealedText, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("object", "title", "tokens", "bytes", "changed_at", "row_digest"),
)
"""Conversations whose rows were moved to object storage. `object` is NULL once they were restored; `title` and `tokens`
are what lists show, `bytes` what the rows count under a quota."""

archived_replies = Table(
    "quire_archived_replies",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("response_id", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    info=grant_rights(deletes=True),
)
"""Ids of the replies in archived conversations, by which a client continues them."""

pending_objects = Table(
    "quire_pending_objects",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("object", Text, primary_key=True),
    Column("since", BigInteger, nullable=False),
    info=grant_rights("since", deletes=True),
)
"""Objects whose upload or removal is not finished. `since` is the time at which an upload began, 0 for an object that
nothing refers to any more."""

blob_uses = Table(
    "quire_blob_uses",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", Bytes, primary_key=True),
    info=grant_rights(deletes=True),
)
"""References from entries to blobs, so that a purge can delete blobs without references."""

manifests = Table(
    "quire_manifests",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("manifest", SealedText, nullable=False),
    Column("request_id", Text),
    Column("response_id", Text),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("manifest", "response_id", "row_digest"),
)
"""The manifest of every answered request (what it was built from), by the number of its reply.

`response_id` is the id by which a client may refer to the reply. An upstream may repeat one."""

exchanges = Table(
    "quire_exchanges",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("exchange", Text, primary_key=True),
    Column("base", Text),
    Column("road", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("branch", Integer, nullable=False),
    Column("after_seq", BigInteger, nullable=False),
    Column("seq", BigInteger),
    Column("started_at", BigInteger, nullable=False),
    Column("first_byte_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("outcome", Text),
    Column("status", Integer),
    Column("error", SealedText),
    Column("size", BigInteger, nullable=False),
    # Requests that were in `quire_request_bodies` are authenticated with that place.
    Column("request", SealedBytes(b"quire_request_bodies.delta"), nullable=False),
    Column("response", SealedBytes, nullable=False),
    Column("row_digest", Bytes),
    info=grant_rights(
        "branch", "after_seq", "seq", "first_byte_at", "completed_at", "outcome", "status", "error", "response",
        "row_digest", deletes=True,
    ),
)  # fmt: skip
"""What passed through the gateway, by the id of the request: see `quire.log.exchanges`. Rows that were in
`quire_request_bodies` have no digest: the manifest of their reply has that of the body."""

imports = Table(
    "quire_imports",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("item", Text, primary_key=True),
    Column("digest", Bytes, primary_key=True),
    Column("branch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("reads", Integer, nullable=False, server_default="1"),
    info=grant_rights("reads"),
)
"""Ledger of imported messages: the id and the digest of each in its source, the entry that it became, and the version
of the reader that gave it its place."""

imported_files = Table(
    "quire_imported_files",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("file", Bytes, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("modified_ns", BigInteger, nullable=False),
    Column("reads", Integer, nullable=False, server_default="1"),
    info=DERIVED,
)
"""Files of other programs that were imported to their end, by a digest of source and path, and the version of their
reader. A path may have a name that a purge must erase, so it is not stored."""

continued_sessions = Table(
    "quire_continued_sessions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("imported", Text, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("branch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("written_at", BigInteger, nullable=False),
    info=grant_rights("conversation", "branch", "seq", "written_at"),
)
"""Sessions that Quire wrote for an agent, by the id that their import would have otherwise, and the entry of the log
that each continues. What is older than `written_at` is a copy."""

observations = Table(
    "quire_observations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("observations", SealedText, nullable=False),
    info=DERIVED,
)
"""What a reader of the transcript noticed in an imported conversation, as JSON: see `quire.findings.observer`."""

transcripts = Table(
    "quire_transcripts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("project", SealedName, primary_key=True),
    Column("session", SealedName, primary_key=True),
    Column("subpath", SealedName, primary_key=True),
    Column("conversation", Text),
    Column("line_count", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    Column("summary", SealedText),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("conversation", "line_count", "modified_at", "summary", "row_digest", deletes=True),
)
"""Transcripts of agents, which resume their sessions from them. `subpath` is empty for the session's own one;
`conversation` was made from it."""

transcript_lines = Table(
    "quire_transcript_lines",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("project", SealedName, primary_key=True),
    Column("session", SealedName, primary_key=True),
    Column("subpath", SealedName, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("uuid", Text),
    Column("line", SealedText, nullable=False),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights(deletes=True),
)
"""Lines of a transcript, opaque and in order; `uuid` identifies a line that may be appended again."""

calibrations = Table(
    "quire_calibrations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("calibration", Text, nullable=False),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("calibration", "row_digest"),
)
"""Ratio of a model's reported tokens to Quire's own counts, as JSON."""

costs = Table(
    "quire_costs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("cost_usd", Double, nullable=False),
    info=grant_rights("cost_usd"),
)
"""Total cost of a conversation's model calls, summaries included, by API key ('' without one)."""

spending = Table(
    "quire_spending",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("cost_usd", Double, nullable=False),
    info=grant_rights("cost_usd"),
)
"""Total cost of an API key's calls ('' without one): the sum of its shards. Each conversation belongs to one shard, so
that concurrent calls rarely wait for the lock of the same row."""

spend_reservations = Table(
    "quire_spend_reservations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("reservation", Text, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("amount_usd", Double, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),
    info=grant_rights(deletes=True),
)
"""Estimated cost and stored bytes of each call in progress that a cap or quota applies to."""

stored_bytes = Table(
    "quire_stored_bytes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    info=grant_rights("bytes"),
)
"""Stored bytes of a tenant with a quota: see `quire.db.stored_bytes`."""

turn_leases = Table(
    "quire_turn_leases",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("turn", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("after_seq", BigInteger),
    Column("question_digest", Bytes),
    Column("expires_at", BigInteger, nullable=False),
    Column("stop_requested", Integer, nullable=False),
    Column("pending_call", Text),
    Column("approval", Text),
    Column("is_approved", Integer),
    Column("outcome", SealedText),
    info=grant_rights(
        "turn",
        "owner",
        "after_seq",
        "question_digest",
        "expires_at",
        "stop_requested",
        "pending_call",
        "approval",
        "is_approved",
        "outcome",
        deletes=True,
    ),
)
"""Running turns of servers: see `quire.turns.leases`. `owner` names the process; `after_seq` and `question_digest`
are the idempotency key of the question."""

passages = Table(
    "quire_passages",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", SealedScope, primary_key=True),
    Column("key", SealedName, primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("title", SealedText, nullable=False),
    Column("text", SealedText, nullable=False),
    Column("digest", Bytes, nullable=False),
    Column("at", BigInteger),
    Column("embedder", Text),
    Column("vector", Bytes),
    info=DERIVED,
)
"""Searchable passages of vault documents and memories. Derived data.

`vector` is used only where PostgreSQL has the extension pgvector, and has its type there."""

terms = Table(
    "quire_terms",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", SealedScope, primary_key=True),
    Column("term", SealedTerm, primary_key=True),
    Column("block", BigInteger, primary_key=True, autoincrement=False),
    Column("postings", SealedBytes, nullable=False),
    info=DERIVED,
)
"""The inverted index: one row per term and block of numbers of passages or messages; it also stores the vectors of
passages, by embedder."""

search_scopes = Table(
    "quire_search_scopes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", SealedScope, primary_key=True),
    Column("next_number", BigInteger, nullable=False),
    Column("passage_count", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("format", Integer, nullable=False),
    info=DERIVED,
)
"""Next number and count of a scope's passages, and the format version of its index. A writer of the scope locks this
row. Of the messages, segments are numbered, and `revision` counts their changes."""

message_segments = Table(
    "quire_message_segments",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("segment", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("erasures", Integer, nullable=False),
    Column("format", Integer, nullable=False),
    Column("embedder", Text),
    Column("columns", SealedBytes, nullable=False),
    Column("terms", SealedBytes, nullable=False),
    info=DERIVED,
)
"""Index of a branch's own messages, `ENTRIES_PER_SEGMENT` entries per row, as opaque bytes. Derived data.

`number` identifies the segment within the tenant, `revision` its last change, `erasures` counts changes to rows that it
had, by a purge or by topics. `embedder` is set if every message in it has a vector."""

unindexed_branches = Table(
    "quire_unindexed_branches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    info=DERIVED,
)
"""Branches with entries that are not in the message index yet, and the last of them: an outbox that every append writes
to."""

uncounted_branches = Table(
    "quire_uncounted_branches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    info=DERIVED,
)
"""Branches with entries that are not in the roll-up yet, and the last of them: an outbox of every append."""

memories = Table(
    "quire_memories",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("memory", Text, primary_key=True),
    Column("namespace", SealedName, nullable=False),
    Column("text", SealedText, nullable=False),
    Column("conversation", Text),
    Column("branch", Integer),
    Column("seq", BigInteger),
    Column("source", SealedText),
    Column("created_at", BigInteger, nullable=False),
    Column("retired_at", BigInteger),
    Column("replaced_by", Text),
    Column("row_digest", Bytes, nullable=False),
    # A memory can only be retired, follow its message to another number, or lose its text to a purge.
    info=grant_rights("branch", "seq", "text", "source", "retired_at", "replaced_by", "row_digest"),
)
"""Memories of an agent, each with the message or the source that it came from."""

documents = Table(
    "quire_documents",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("vault", SealedName, primary_key=True),
    Column("path", SealedName, primary_key=True),
    Column("digest", Bytes, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("modified_ns", BigInteger, nullable=False),
    Column("title", SealedText, nullable=False),
    Column("summary", SealedText, nullable=False),
    Column("aliases", SealedText, nullable=False),
    Column("headings", SealedText, nullable=False),
    Column("row_digest", Bytes, nullable=False),
    info=DERIVED,
)
"""Indexed files of a vault. Aliases and headings are JSON lists. Derived data."""

api_keys = Table(
    "quire_api_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Bytes, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("requests_per_minute", Integer),
    Column("max_spend", Double),
    Column("models", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("row_digest", Bytes, nullable=False),
    Column("created_by", Text),
    info=grant_rights("revoked_at", "row_digest"),
)
"""API keys: the public id and the digest of the secret. Scopes are separated by spaces,
`models` is a JSON list, `created_by` the id of another key."""

turn_events = Table(
    "quire_turn_events",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("turn", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("events", SealedText, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    info=grant_rights(deletes=True),
)
"""Events of running turns that other processes show, as JSON arrays; `number` counts the first event of a row."""

rate_limits = Table(
    "quire_rate_limits",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("tokens", Double, nullable=False),
    Column("granted", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    info=grant_rights("tokens", "granted", "updated_at"),
)
"""Token bucket of an API key: its tokens at a time in seconds, and the permits that the last server took."""

background_responses = Table(
    "quire_background_responses",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("response", Text, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("request", SealedText, nullable=False),
    Column("outcome", SealedText),
    info=grant_rights("outcome", "request", deletes=True),
)
"""Requests that earlier versions answered in the background. Rows are only deleted, with their conversation."""

sweeps = Table(
    "quire_sweeps",
    metadata,
    Column("name", Text, primary_key=True),
    Column("swept_until", BigInteger, nullable=False),
    info=grant_rights(ALL_COLUMNS),
)
"""Time up to which each sweep has searched for missing work. It covers all tenants, so it has no tenant column."""

users = Table(
    "quire_users",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("subject", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("email", Text, nullable=False),
    Column("roles", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("confirmed_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("subject", "name", "email", "roles", "confirmed_at", "disabled_at", "row_digest"),
)
"""People of a tenant who have signed in. `subject` is the identity provider's id of the person, `confirmed_at` the last
time at which the provider confirmed it. Roles are separated by spaces."""

sessions = Table(
    "quire_sessions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", Bytes, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("refresh_at", BigInteger, nullable=False),
    Column("tokens", Text, nullable=False),
    info=grant_rights("refresh_at", "tokens", deletes=True),
)
"""Sessions of browsers, by the digest of the secret in their cookie. `tokens` is encrypted with that secret."""

shares = Table(
    "quire_shares",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("reader", Text, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    info=grant_rights(deletes=True),
)
"""Conversations that other people of the tenant may read; `reader` is a person's id, or `*` for all of them."""

directory_users = Table(
    "quire_directory_users",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("user_name", Text, nullable=False),
    Column("resource", SealedText, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("user_name", "resource", "changed_at", "row_digest", deletes=True),
)
"""People as a directory provisions them by SCIM, with the id of their row in `users`. `user_name` is in lower case, and
`resource` has the attributes as JSON."""

directory_groups = Table(
    "quire_directory_groups",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("display_name", Text, nullable=False),
    Column("external_id", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights("display_name", "external_id", "changed_at", "row_digest", deletes=True),
)
"""Groups of that directory."""

directory_members = Table(
    "quire_directory_members",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("group_id", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("row_digest", Bytes, nullable=False),
    info=grant_rights(deletes=True),
)
"""Who is in which of them."""

audit = Table(
    "quire_audit",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", SealedText, nullable=False),
    Column("allowed", Integer, nullable=False),
    Column("address", Text, nullable=False),
    Column("digest", Bytes, nullable=False),
)
"""The audit trail: each digest covers the entry and its predecessor's digest."""

audit_heads = Table(
    "quire_audit_heads",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("digest", Bytes, nullable=False),
    info=grant_rights("seq", "digest"),
)
"""The last entry of each audit trail, so that a removed end is found."""

audit_exports = Table(
    "quire_audit_exports",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("claim", Text, nullable=False),
    Column("claimed_until", BigInteger, nullable=False),
    info=grant_rights("seq", "claim", "claimed_until"),
)
"""How far each audit trail was sent to a receiver of logs, and the process that sends the next entries."""

tenant_keys = Table(
    "quire_tenant_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("wrapped", Bytes, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    info=grant_rights("wrapped"),
)
"""Wrapped data keys of encrypted tenants: see `quire.db.tenant_keys`. Backups exclude this table: one that has it can
be read after the tenant was purged."""

counted_branches = Table(
    "quire_counted_branches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("rules", Integer, nullable=False, server_default="1"),
    info=DERIVED,
)
"""High-water mark of each branch: the roll-up has its own entries up to this one, counted by `rules`. A partial index
has the branches that were counted by older rules."""

counted_requests = Table(
    "quire_counted_requests",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("request", Bytes, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("is_counted", Integer, nullable=False),
    Column("is_recorded", Integer, nullable=False),
    info=DERIVED,
)
"""Replies by a digest of the id that their provider or their source gave them. Several transcripts may repeat a reply,
such as those of a session and its fork, and the gateway may have recorded it. One of them is counted: a recorded one
before an imported one, else the first."""

_USAGE_COUNTS = (
    "turns", "requests", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_nanos",
    "unpriced_turns", "compactions", "compacted_tokens", "recalled_messages", "recalled_tokens", "candidates", "uses",
    "tokens", "unpriced_requests", "unpriced_tokens", "imported_nanos",
)  # fmt: skip
"""Columns of the roll-up: the fields of `quire.usage.contribution.UsageCounts`."""

usage_contributions = Table(
    "quire_usage_contributions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("dimension", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("name", SealedName, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in _USAGE_COUNTS),
    info=DERIVED,
)
"""What each conversation adds to the totals."""

usage_totals = Table(
    "quire_usage_totals",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("dimension", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("name", SealedName, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in _USAGE_COUNTS),
    info=DERIVED,
)
"""The sum of the contributions of all conversations, by dimension, day (number since 1970, UTC) and name."""

usage_turns = Table(
    "quire_usage_turns",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("day", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("unpriced_requests", BigInteger, nullable=False, server_default="0"),
    info=DERIVED,
)
"""Turns with a cost or reported tokens, by the last reply of each. An index orders them by cost."""

document_pairs = Table(
    "quire_document_pairs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("first", SealedName, primary_key=True),
    Column("second", SealedName, primary_key=True),
    Column("conversations", BigInteger, nullable=False),
    info=DERIVED,
)
"""Documents that are used together, and in how many conversations; `first` sorts before `second`."""

bind_places(metadata)
