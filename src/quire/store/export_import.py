"""Export and import of a conversation as JSON Lines: header, blobs, each branch with its own entries,
its exchanges, and an end line.

Export, import and export again gives the same bytes, except for the id if another one is given. An import verifies
every digest and is atomic. Recall segments and passages are not exported, since they are derived from the log. Memories
are not, since they belong to their agent.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy import Connection

from quire.db.database import map_database_errors
from quire.db.dialects import insert_rows
from quire.db.schema import exchanges
from quire.db.stored_bytes import count_bytes
from quire.errors import ImportFailed, QuireError, StoreBusy, StoreUnavailable
from quire.log import append, blobs, conversations, ledger, reads
from quire.log.exchanges import ExchangeReader, Road, decode_answer, decode_request, from_body_row
from quire.log.row_digests import with_row_digest
from quire.log.tenant_masker import get_masker, mask_text
from quire.log.types import Blob, Branch, ConversationOrigin, ConversationRecord, Outcome
from quire.model import (
    ActiveCompaction,
    Author,
    Compaction,
    Entry,
    EntryKind,
    EntryMetadata,
    Manifest,
    apply_entry,
    chain_digest,
    compute_content_digest,
    next_path,
)
from quire.model.base import FrozenModel
from quire.model.entry_bodies import parse_body

EXPORT_FORMAT = 1

EXPORT_BATCH_SIZE = 1_000
"""Entries per statement, in an export and in an import."""

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
BranchNumber = Annotated[int, Field(ge=0, lt=2**31)]
"""Integers within the range of their database column."""


class ConversationLine(FrozenModel):
    line: Literal["conversation"] = "conversation"
    format: Literal[1]
    id: str = Field(min_length=1)
    title: str
    created_at: Int64
    origin: ConversationOrigin | None = None
    tags: tuple[str, ...] | None = None
    metadata: dict[str, str] | None = None
    """Notes of a client of the gateway."""


class BlobLine(FrozenModel):
    line: Literal["blob"] = "blob"
    digest: str
    media_type: str
    data: str


class BranchLine(FrozenModel):
    line: Literal["branch"] = "branch"
    number: BranchNumber
    name: str
    created_at: Int64
    lineage: tuple[tuple[BranchNumber, Int64], ...]


class EntryLine(FrozenModel):
    line: Literal["entry"] = "entry"
    branch: BranchNumber
    seq: Int64
    kind: EntryKind
    author: Author
    at: Int64
    digest: str
    path: str
    tokens: Int64 | None = None
    counter: str | None = None
    purged_at: Int64 | None = None
    content_digest: str | None = None
    """Digest of content that was purged. For other entries it is computed."""
    notes: JsonValue = None
    body: JsonValue


class ManifestLine(FrozenModel):
    line: Literal["manifest"] = "manifest"
    branch: BranchNumber
    seq: Int64
    manifest: JsonValue


class ExchangeLine(FrozenModel):
    """A request as it was sent, as a delta to the request `base` of an earlier line, and what came back."""

    line: Literal["exchange"] = "exchange"
    exchange: str = Field(min_length=1)
    base: str | None = None
    road: Road
    reason: str
    model: str
    branch: BranchNumber
    after_seq: Int64
    seq: Int64 | None = None
    started_at: Int64
    first_byte_at: Int64 | None = None
    completed_at: Int64 | None = None
    outcome: Outcome | None = None
    status: int | None = None
    error: str | None = None
    size: Int64
    request: str
    response: str


class BodyLine(FrozenModel):
    """The body of a request, in exports of earlier versions."""

    line: Literal["body"] = "body"
    branch: BranchNumber
    seq: Int64
    base: tuple[BranchNumber, Int64] | None = None
    size: Int64
    delta: str


class EndLine(FrozenModel):
    line: Literal["end"] = "end"
    entries: int


ExportLine = Annotated[
    ConversationLine | BlobLine | BranchLine | EntryLine | ManifestLine | ExchangeLine | BodyLine | EndLine,
    Field(discriminator="line"),
]
_LINE_ADAPTER: TypeAdapter[ExportLine] = TypeAdapter(ExportLine)


def format_entry_line(entry: Entry) -> str:
    """Formats an entry. Its body is copied byte by byte."""
    head: dict[str, Any] = {
        "line": "entry",
        "branch": entry.branch,
        "seq": entry.seq,
        "kind": entry.kind,
        "author": entry.author,
        "at": entry.created_at,
        "digest": entry.digest.hex(),
        "path": entry.path.hex(),
    }
    purged_digest = entry.content_digest.hex() if entry.content_digest and entry.purged_at is not None else None
    optional = {
        "tokens": entry.tokens,
        "counter": entry.counter,
        "purged_at": entry.purged_at,
        "content_digest": purged_digest,
    }
    head |= {name: value for name, value in optional.items() if value is not None}
    notes = f',"notes":{entry.raw_metadata}' if entry.raw_metadata else ""
    return f'{json.dumps(head, separators=(",", ":"))[:-1]}{notes},"body":{entry.raw}}}'


def list_exchange_lines(connection: Connection, tenant: str, conversation: str) -> list[str]:
    return [
        ExchangeLine.model_validate(
            {name: value for name, value in row.items() if name in ExchangeLine.model_fields}
            | {name: base64.b64encode(row[name]).decode() for name in ("request", "response")}
        ).canonical_json()
        for row in ExchangeReader(connection, tenant, conversation).iter_rows()
    ]


def import_lines(
    connection: Connection, tenant: str, lines: Iterable[str], *, as_id: str | None = None
) -> ConversationRecord:
    """Imports one exported conversation, under another id if one is given."""
    numbered = _parse_lines(lines)
    number, first = next(numbered, (0, None))
    if not isinstance(first, ConversationLine):
        raise ImportFailed(
            f"Line {number}: an export must begin with the line of its conversation. Nothing was imported."
        )
    conversation = ConversationRecord(as_id or first.id, first.title, first.created_at, first.created_at, first.origin)
    importer = _Importer(connection, tenant, conversation)
    if first.metadata:
        conversations.set_metadata(connection, tenant, conversation.id, first.metadata)
    if first.tags:
        tags = conversations.set_tags(connection, tenant, conversation.id, first.tags)
        conversation = conversation._replace(tags=tags)
    for number, line in numbered:
        try:
            with map_database_errors():
                importer.import_line(line)
        except (StoreUnavailable, StoreBusy):
            raise
        except (QuireError, ValueError, LookupError) as error:
            # A line may contain anything: an invalid digest, a body of another kind, a branch that exists already.
            raise ImportFailed(f"Line {number}: {_describe_error(error)} Nothing was imported.") from error
    importer.finish()
    return conversation


def _parse_lines(lines: Iterable[str]) -> Iterator[tuple[int, ExportLine]]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            yield number, _LINE_ADAPTER.validate_json(text)
        except ValidationError as error:
            raise ImportFailed(f"Line {number}: {_describe_error(error)} Nothing was imported.") from error


def _describe_error(error: Exception) -> str:
    if isinstance(error, QuireError):
        return str(error)
    if not isinstance(error, ValidationError):
        return f"{error}."
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])} {first['msg']}."


_UNMASKED = (
    "contains a secret, and this tenant stores no secrets (`tenant_masking`). An export verifies only as it is, so "
    "nothing was imported. Purge the secret before the export, or import the conversation as another tenant."
)


class _Importer:
    """Imports the lines in order; holds the current branch and a batch of its entries."""

    def __init__(self, connection: Connection, tenant: str, conversation: ConversationRecord) -> None:
        self._connection, self._tenant, self._conversation = connection, tenant, conversation
        self._branch: Branch | None = None
        self._compactions: dict[int, ActiveCompaction] = {}
        self._pending: list[Entry] = []
        self._count = 0
        self._is_ended = False
        self._exchanges = ExchangeReader(connection, tenant, conversation.id)
        masked = conversation._replace(title=mask_text(connection, conversation.title))
        conversations.insert_conversation(connection, tenant, masked)

    def import_line(self, line: ExportLine) -> None:
        if self._is_ended:
            raise ImportFailed("There are lines after the end line of the export.")
        connection, tenant, conversation = self._connection, self._tenant, self._conversation.id
        match line:
            case ConversationLine():
                raise ImportFailed("A second conversation begins here; import each conversation from its own file.")
            case BlobLine():
                blob, digest = Blob(line.media_type, base64.b64decode(line.data)), bytes.fromhex(line.digest)
                if not blobs.has_digest(blob, digest):
                    raise ImportFailed(f"The blob {line.digest} does not match its digest.")
                blobs.import_blob(connection, tenant, digest, blob)
            case BranchLine():
                self._flush()
                self._compactions = {}
                if line.lineage:
                    parent, at = line.lineage[-1]
                    self._branch = conversations.build_fork(
                        connection,
                        tenant,
                        conversations.get_branch(connection, tenant, conversation, parent),
                        at=at,
                        number=line.number,
                        name=line.name,
                        created_at=line.created_at,
                    )
                    conversations.insert_branch(connection, tenant, self._branch)
                    conversations.touch_conversation(connection, tenant, conversation, self._branch.updated_at)
                else:
                    self._branch = conversations.get_branch(connection, tenant, conversation, line.number)
            case EntryLine():
                self._import_entry(line)
            case ManifestLine():
                self._flush()
                if self._branch is None or self._branch.number != line.branch:
                    raise ImportFailed(f"The manifest of reply #{line.seq} does not follow its branch {line.branch}.")
                reply = reads.get_entry(connection, tenant, self._branch, line.seq)
                if reply.role != "assistant":
                    raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} has a manifest, but is no reply.")
                # A manifest names the conversation that a replay reads, so under another id it names the imported one.
                recorded = Manifest.parse(_to_compact_json(line.manifest))
                manifest = recorded.model_copy(update={"conversation": conversation})
                ledger.import_manifest(connection, tenant, reply, manifest)
            case ExchangeLine():
                row = line.model_dump(exclude={"line"})
                row |= {name: base64.b64decode(row[name]) for name in ("request", "response")}
                self._import_exchange({**row, "conversation": conversation})
            case BodyLine():
                base_branch, base_seq = line.base or (None, None)
                row = {"base_branch": base_branch, "base_seq": base_seq, "delta": base64.b64decode(line.delta)}
                row |= {"conversation": conversation, "branch": line.branch, "seq": line.seq, "size": line.size}
                self._import_exchange(from_body_row(row))
            case EndLine():
                self._flush()
                if line.entries != self._count:
                    raise ImportFailed(f"The end line counts {line.entries} entries, but {self._count} were read.")
                self._is_ended = True

    def _import_exchange(self, row: dict[str, Any]) -> None:
        self._flush()
        connection, tenant, conversation = self._connection, self._tenant, self._conversation.id
        name = f"The request of reply #{row['seq']}" if row["seq"] is not None else f"The request {row['exchange']!r}"
        count_bytes(connection, len(row["request"]) + len(row["response"]))
        insert_rows(connection, exchanges, [with_row_digest(exchanges, {"tenant": tenant, **row})])
        content = self._exchanges.read(row["exchange"]) or b""
        if row["seq"] is not None and row["size"]:
            branch = conversations.get_branch(connection, tenant, conversation, row["branch"])
            forwarded = ledger.get_manifest(connection, tenant, branch, row["seq"]).forwarded
            digest = forwarded.stored_body_digest if forwarded is not None else None
            if sha256(decode_request(content)[1]).hexdigest() != digest:
                raise ImportFailed(f"{name} does not match its digest.")
        answer = decode_answer(row["response"])[1]
        for text in (content.decode(errors="replace"), answer.decode(errors="replace"), row["error"] or ""):
            if mask_text(connection, text) != text:
                raise ImportFailed(f"{name} {_UNMASKED}")

    def finish(self) -> None:
        if not self._is_ended:
            raise ImportFailed("The export is incomplete: its end line is missing. Nothing was imported.")

    def _import_entry(self, line: EntryLine) -> None:
        branch = self._branch
        if branch is None or line.branch != branch.number or line.seq != branch.head_seq + 1:
            raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} does not follow the entry before it.")
        entry = _to_entry(self._conversation.id, line)
        computed = chain_digest(branch.head_digest, entry.content_digest or b"")
        path = next_path(branch.head_path, entry.raw) if entry.kind == "message" else branch.head_path
        if entry.purged_at is not None and not entry.has_purged_form:
            raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} is marked as purged but has content.")
        if computed != entry.digest or (entry.purged_at is None and path != entry.path):
            raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} does not match its digest.")
        if entry.kind != "message" and entry.path != branch.head_path:
            raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} does not match its path.")
        masker = get_masker(self._connection)
        if masker is not None and entry.purged_at is None:
            metadata = append.mask_metadata(self._connection, entry.raw_metadata)
            if (masker.mask_body(entry.body).canonical_json(), metadata) != (entry.raw, entry.raw_metadata):
                raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} {_UNMASKED}")
        state = branch.state
        if entry.kind != "message":
            body = entry.body
            if isinstance(body, Compaction):
                self._compactions[entry.seq] = ActiveCompaction.from_entry(entry.seq, body)

            def compaction_at(seq: int) -> ActiveCompaction:
                if seq not in self._compactions:
                    earlier = reads.get_entry(self._connection, self._tenant, branch, seq).body
                    if isinstance(earlier, Compaction):
                        self._compactions[seq] = ActiveCompaction.from_entry(seq, earlier)
                return self._compactions[seq]

            state = apply_entry(state, entry.seq, body, compaction_at=compaction_at)
        self._branch = branch._replace(head_seq=entry.seq, head_digest=entry.digest, head_path=entry.path, state=state)
        self._pending.append(entry)
        self._count += 1
        if len(self._pending) >= EXPORT_BATCH_SIZE:
            self._flush()

    def _flush(self) -> None:
        # A branch without entries of its own is as it was created: nothing of it is to be indexed.
        if self._pending and self._branch is not None:
            append.insert_entries(self._connection, self._tenant, self._pending)
            entry_digests = ((entry, entry.blob_digests()) for entry in self._pending)
            append.insert_blob_uses(self._connection, self._tenant, entry_digests)
            self._pending = []
            conversations.move_head(self._connection, self._tenant, self._branch)


def _to_entry(conversation: str, line: EntryLine) -> Entry:
    raw = _to_compact_json(line.body)
    body = parse_body(line.kind, raw)
    notes = None if line.notes is None else _to_compact_json(line.notes)
    if notes is not None:
        EntryMetadata.parse(notes)
    entry = Entry(
        conversation=conversation,
        branch=line.branch,
        seq=line.seq,
        kind=line.kind,
        role=getattr(body, "role", None),
        author=line.author,
        created_at=line.at,
        digest=bytes.fromhex(line.digest),
        path=bytes.fromhex(line.path),
        tokens=line.tokens,
        counter=line.counter,
        raw=raw,
        raw_metadata=notes,
        purged_at=line.purged_at,
    )
    if line.purged_at is not None:
        return entry._replace(content_digest=bytes.fromhex(line.content_digest or ""))
    return entry._replace(content_digest=compute_content_digest(metadata=entry.digest_metadata(), body=raw))


def _to_compact_json(value: JsonValue) -> str:
    return to_json(value, inf_nan_mode="constants").decode()
