"""A conversation as JSON Lines: its head, its blobs, each branch followed by its own entries, and a line that ends it.

Export, import, export gives the same bytes. An import checks every digest and keeps all or nothing. Shelves and
passages are made anew from the log and do not travel; memories belong to their agent, whoever it talked to, and stay.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy import Connection

from quire.errors import ImportFailed, QuireError, StoreBusy, StoreUnavailable
from quire.log import append, blobs, branches, ledger, reading
from quire.log.foreign import mapped_errors
from quire.log.records import Blob, Branch, Conversation
from quire.model import (
    Author,
    BranchState,
    Compaction,
    Coverage,
    Entry,
    EntryKind,
    Manifest,
    Notes,
    chain_digest,
    fold,
    next_path,
)
from quire.model.entries import parse_body
from quire.model.value import Value

FORMAT = 1
PAGE = 1_000

Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
BranchNumber = Annotated[int, Field(ge=0, lt=2**31)]
"""What a database can keep as such."""


class ConversationLine(Value):
    line: Literal["conversation"] = "conversation"
    format: Literal[1]
    id: str = Field(min_length=1)
    title: str
    created_at: Number


class BlobLine(Value):
    line: Literal["blob"] = "blob"
    digest: str
    media_type: str
    data: str


class BranchLine(Value):
    line: Literal["branch"] = "branch"
    number: BranchNumber
    name: str
    created_at: Number
    lineage: tuple[tuple[BranchNumber, Number], ...]


class EntryLine(Value):
    line: Literal["entry"] = "entry"
    branch: BranchNumber
    seq: Number
    kind: EntryKind
    author: Author
    at: Number
    digest: str
    path: str
    tokens: Number | None = None
    counter: str | None = None
    purged_at: Number | None = None
    notes: JsonValue = None
    body: JsonValue


class ManifestLine(Value):
    line: Literal["manifest"] = "manifest"
    branch: BranchNumber
    seq: Number
    manifest: JsonValue


class EndLine(Value):
    line: Literal["end"] = "end"
    entries: int


Line = Annotated[
    ConversationLine | BlobLine | BranchLine | EntryLine | ManifestLine | EndLine, Field(discriminator="line")
]
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


def conversation_line(conversation: Conversation) -> str:
    return ConversationLine(
        format=FORMAT, id=conversation.id, title=conversation.title, created_at=conversation.created_at
    ).canonical()


def blob_line(digest: str, blob: Blob) -> str:
    data = base64.b64encode(blob.data).decode()
    return BlobLine(digest=digest, media_type=blob.media_type, data=data).canonical()


def branch_line(branch: Branch) -> str:
    return BranchLine(
        number=branch.number, name=branch.name, created_at=branch.created_at, lineage=branch.lineage
    ).canonical()


def entry_line(entry: Entry) -> str:
    """The body goes in as it is stored, to the byte."""
    head: dict[str, Any] = {
        "line": "entry",
        "branch": entry.branch,
        "seq": entry.seq,
        "kind": entry.kind,
        "author": entry.author,
        "at": entry.at,
        "digest": entry.digest.hex(),
        "path": entry.path.hex(),
    }
    optional = {"tokens": entry.tokens, "counter": entry.counter, "purged_at": entry.purged_at}
    head |= {name: value for name, value in optional.items() if value is not None}
    notes = f',"notes":{entry.raw_notes}' if entry.raw_notes else ""
    return f'{json.dumps(head, separators=(",", ":"))[:-1]}{notes},"body":{entry.raw}}}'


def manifest_line(branch: int, seq: int, manifest: str) -> str:
    return f'{{"line":"manifest","branch":{branch},"seq":{seq},"manifest":{manifest}}}'


def end_line(count: int) -> str:
    return EndLine(entries=count).canonical()


def import_lines(connection: Connection, tenant: str, lines: Iterable[str], *, rename: str | None) -> Conversation:
    """Stores one exported conversation, under another id if one is given."""
    numbered = _parsed(lines)
    number, first = next(numbered, (0, None))
    if not isinstance(first, ConversationLine):
        raise ImportFailed(f"Line {number}: an export begins with a line for the conversation.")
    conversation = Conversation(rename or first.id, first.title, first.created_at, first.created_at)
    importing = _Import(connection, tenant, conversation)
    for number, line in numbered:
        try:
            with mapped_errors():
                importing.take(line)
        except (StoreUnavailable, StoreBusy):
            raise
        except (QuireError, ValueError, LookupError) as error:
            # A line may hold anything: a digest that is none, a body of another kind, a branch that was there before.
            raise ImportFailed(f"Line {number}: {_said(error)} Nothing was imported.") from error
    importing.finish()
    return conversation


def _parsed(lines: Iterable[str]) -> Iterator[tuple[int, Line]]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            yield number, _LINE.validate_json(text)
        except ValidationError as error:
            raise ImportFailed(f"Line {number}: {_said(error)} Nothing was imported.") from error


def _said(error: Exception) -> str:
    if isinstance(error, QuireError):
        return str(error)
    if not isinstance(error, ValidationError):
        return f"{error}."
    what = error.errors(include_url=False)[0]
    return f"{'.'.join(str(step) for step in what['loc'])} {what['msg']}."


class _Import:
    """Takes the lines in turn; holds the branch that is being filled and a page of its entries."""

    def __init__(self, connection: Connection, tenant: str, conversation: Conversation) -> None:
        self._connection, self._tenant, self._conversation = connection, tenant, conversation
        self._branch: Branch | None = None
        self._known: dict[int, Coverage] = {}
        self._page: list[Entry] = []
        self._count = 0
        self._ended = False
        branches.create_conversation(connection, tenant, conversation)

    def take(self, line: Line) -> None:
        if self._ended:
            raise ImportFailed("There is more after the line that ends the export.")
        match line:
            case ConversationLine():
                raise ImportFailed("A second conversation begins here; import one file a conversation.")
            case BlobLine():
                self._take_blob(line)
            case BranchLine():
                self._take_branch(line)
            case EntryLine():
                self._take_entry(line)
            case ManifestLine():
                self._take_manifest(line)
            case EndLine():
                self._flush()
                if line.entries != self._count:
                    raise ImportFailed(f"The export has {line.entries} entries, and {self._count} were read.")
                self._ended = True

    def finish(self) -> None:
        if not self._ended:
            raise ImportFailed("The export breaks off before its last line. Nothing was imported.")

    def _take_blob(self, line: BlobLine) -> None:
        blob = Blob(line.media_type, base64.b64decode(line.data))
        if blobs.put_blob(self._connection, self._tenant, blob) != line.digest:
            raise ImportFailed(f"The blob {line.digest} does not have that digest.")

    def _take_branch(self, line: BranchLine) -> None:
        self._flush()
        self._branch, self._known = self._opened(line), {}

    def _opened(self, line: BranchLine) -> Branch:
        """The branch as it stands before its own entries."""
        conversation = self._conversation.id
        if not line.lineage:
            return branches.get_branch(self._connection, self._tenant, conversation, line.number)
        parent, at = line.lineage[-1]
        origin = branches.get_branch(self._connection, self._tenant, conversation, parent)
        forked = branches.forked(
            self._connection,
            self._tenant,
            origin,
            at=at,
            number=line.number,
            name=line.name,
            created_at=line.created_at,
        )
        branches.insert_branch(self._connection, self._tenant, forked)
        return forked

    def _take_entry(self, line: EntryLine) -> None:
        place = self._branch
        if place is None or line.branch != place.number or line.seq != place.head_seq + 1:
            raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} does not follow what stands before it.")
        entry = _entry(self._conversation.id, line)
        computed = chain_digest(place.head_digest, beside=entry.beside(), body=entry.raw)
        path = next_path(place.head_path, entry.raw) if entry.kind == "message" else place.head_path
        if entry.purged_at is None and (computed != entry.digest or path != entry.path):
            raise ImportFailed(f"Entry #{line.seq} of branch {line.branch} does not have the digest that it states.")
        self._branch = place._replace(
            head_seq=entry.seq,
            head_digest=entry.digest,
            head_path=entry.path,
            state=self._folded(place.state, entry),
        )
        self._page.append(entry)
        self._count += 1
        if len(self._page) >= PAGE:
            self._flush()

    def _take_manifest(self, line: ManifestLine) -> None:
        self._flush()
        if self._branch is None or self._branch.number != line.branch:
            raise ImportFailed(f"The request under #{line.seq} does not follow its branch.")
        reply = reading.get_entry(self._connection, self._tenant, self._branch, line.seq)
        manifest = Manifest.parse(_compact(line.manifest))
        ledger.write_manifest(self._connection, self._tenant, reply, manifest)

    def _folded(self, state: BranchState, entry: Entry) -> BranchState:
        if entry.kind == "message":
            return state
        body = entry.body
        if isinstance(body, Compaction):
            self._known[entry.seq] = Coverage.of(entry.seq, body)
        return fold(state, entry.seq, body, coverage_at=self._coverage_at)

    def _coverage_at(self, seq: int) -> Coverage:
        if seq not in self._known and self._branch is not None:
            body = reading.get_entry(self._connection, self._tenant, self._branch, seq).body
            if isinstance(body, Compaction):
                self._known[seq] = Coverage.of(seq, body)
        return self._known[seq]

    def _flush(self) -> None:
        if self._page:
            append.write_entries(self._connection, self._tenant, self._page)
            quoted = ((entry, entry.blobs()) for entry in self._page)
            append.write_blob_uses(self._connection, self._tenant, quoted)
            self._page = []
        if self._branch is not None:
            branches.move_head(self._connection, self._tenant, self._branch)


def _entry(conversation: str, line: EntryLine) -> Entry:
    raw = _compact(line.body)
    body = parse_body(line.kind, raw)
    notes = None if line.notes is None else _compact(line.notes)
    if notes is not None:
        Notes.parse(notes)
    return Entry(
        conversation=conversation,
        branch=line.branch,
        seq=line.seq,
        kind=line.kind,
        role=getattr(body, "role", None),
        author=line.author,
        at=line.at,
        digest=bytes.fromhex(line.digest),
        path=bytes.fromhex(line.path),
        tokens=line.tokens,
        counter=line.counter,
        raw=raw,
        raw_notes=notes,
        purged_at=line.purged_at,
    )


def _compact(value: JsonValue) -> str:
    return to_json(value, inf_nan_mode="constants").decode()
