"""Protocols of a storage backend: `Store` is what an engine needs, `KeyStore` and `WorklistStore` what a server needs.

Functions name the narrowest protocol that they use, so that a backend may implement a part.
`quire.testing.contract` tests what each method promises.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from quire.log.costs import NO_KEY, SpendCaps
from quire.log.imports import ImportBatch, ImportLedger, Position
from quire.log.keys import ApiKey, KeyPosition
from quire.log.search_types import (
    DocumentFingerprint,
    IndexedBranch,
    IndexedDocument,
    IndexingBatch,
    MessageIndexRead,
    MessageKey,
    Passage,
    PassageVector,
    SearchHit,
    SegmentData,
    SegmentRef,
    SegmentUpdate,
    UnembeddedPassage,
    VaultDocument,
)
from quire.log.transcripts import SummaryFold, TranscriptKey, TranscriptLine, TranscriptRecord
from quire.log.types import (
    MAIN_BRANCH,
    Blob,
    Branch,
    BranchMatch,
    Citation,
    ConversationOrigin,
    ConversationRecord,
    IntegrityFault,
    Memory,
    OriginCount,
    PrefixMatch,
    RecordedRequest,
    ReplyRecord,
    TurnLease,
    ValuePurge,
    Window,
)
from quire.log.usage.report import USAGE_GROUPINGS, DocumentPair, RollupReport, UsageGrouping
from quire.log.usage.rollup import BATCH_ENTRIES, RecountResult
from quire.log.worklist import ConversationActivity
from quire.model import Body, Draft, Entry, EntryKind, Manifest, Message, Role

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class LogStore(Protocol):
    """Conversations, branches, entries, and the blobs that entries reference."""

    async def create_conversation(
        self, id: str | None = None, *, title: str = "", origin: ConversationOrigin | None = None
    ) -> ConversationRecord: ...
    async def get_conversation(self, id: str) -> ConversationRecord: ...
    async def list_conversations(
        self,
        *,
        limit: int = 50,
        before: ConversationRecord | None = None,
        origin: ConversationOrigin | None = None,
        main_only: bool = False,
    ) -> list[ConversationRecord]: ...
    async def list_origins(self, *, limit: int = 200) -> list[OriginCount]: ...
    async def list_session(self, session: str, *, limit: int = 50) -> list[ConversationRecord]: ...
    async def fill_titles(self, *items: ConversationRecord) -> list[ConversationRecord]: ...
    async def sum_tokens(self, conversations: Collection[str]) -> dict[str, int]: ...
    async def rename_conversation(self, conversation: str, title: str) -> None: ...
    async def get_branch(self, conversation: str, number: int = MAIN_BRANCH) -> Branch: ...
    async def list_branches(self, conversation: str) -> list[Branch]: ...
    async def fork(
        self, conversation: str, *, at: int, branch: int = MAIN_BRANCH, name: str | None = None
    ) -> Branch: ...
    async def append(
        self,
        conversation: str,
        *items: Draft | Body,
        branch: int = MAIN_BRANCH,
        after: bytes | None = None,
        lease: TurnLease | None = None,
    ) -> list[Entry]: ...
    async def get_entry(self, conversation: str, seq: int, *, branch: int = MAIN_BRANCH) -> Entry: ...
    async def get_entries(
        self, conversation: str, seqs: Collection[int], *, branch: int = MAIN_BRANCH
    ) -> list[Entry]: ...
    async def read_range(
        self,
        conversation: str,
        *,
        branch: int = MAIN_BRANCH,
        first: int = 1,
        last: int | None = None,
        kinds: Collection[EntryKind] | None = None,
        roles: Collection[Role] | None = None,
        limit: int | None = None,
    ) -> list[Entry]: ...
    async def list_referencing_entries(self, conversation: str, *, branch: int = MAIN_BRANCH) -> list[Entry]: ...
    async def read_tail(
        self,
        conversation: str,
        limit: int,
        *,
        branch: int = MAIN_BRANCH,
        last: int | None = None,
        kinds: Collection[EntryKind] | None = None,
        roles: Collection[Role] | None = None,
    ) -> list[Entry]: ...
    async def read_window(
        self,
        conversation: str,
        *,
        branch: int = MAIN_BRANCH,
        max_tokens: int | None = None,
        known: Window | None = None,
    ) -> Window: ...
    async def find_longest_prefix(
        self, messages: Sequence[Message], *, conversation: str | None = None
    ) -> PrefixMatch | None: ...
    async def match_history(
        self, paths: Sequence[bytes], *, conversation: str | None = None, session: str | None = None
    ) -> BranchMatch | None: ...
    async def put_blob(self, data: bytes, *, media_type: str = "application/octet-stream") -> str: ...
    async def get_blob(self, digest: str) -> Blob: ...
    async def purge(
        self, conversation: str, seqs: Collection[int] | None = None, *, branch: int = MAIN_BRANCH
    ) -> list[Entry]: ...
    async def purge_value(self, value: str) -> ValuePurge: ...
    async def find_value(self, value: str) -> dict[str, int]: ...
    async def is_purged(self, conversation: str) -> bool: ...
    async def verify_conversation(self, conversation: str) -> list[IntegrityFault]: ...
    async def verify_tenant(self) -> list[IntegrityFault]: ...
    def export_conversation(self, conversation: str) -> AsyncIterator[str]: ...
    async def import_conversation(self, lines: Iterable[str], *, as_id: str | None = None) -> ConversationRecord: ...


class LedgerStore(Protocol):
    """Manifests of answered requests, token calibration and cost."""

    async def record_reply(
        self, conversation: str, record: ReplyRecord, *, branch: int = MAIN_BRANCH, after: bytes | None = None
    ) -> list[Entry]: ...
    async def get_manifest(self, conversation: str, seq: int, *, branch: int = MAIN_BRANCH) -> Manifest: ...
    async def list_manifests(
        self, conversation: str, *, branch: int = MAIN_BRANCH, limit: int | None = None, last: int | None = None
    ) -> list[tuple[int, Manifest]]: ...
    async def get_request(self, id: str) -> RecordedRequest: ...
    async def find_response(self, response_id: str) -> RecordedRequest: ...
    async def forget_response(self, response_id: str) -> bool: ...
    async def get_calibration(self, model: str) -> str | None: ...
    async def add_cost(self, conversation: str, cost_usd: float, *, key_id: str = NO_KEY) -> float: ...
    async def get_cost(self, conversation: str) -> float: ...
    async def check_spend(self, conversation: str, caps: SpendCaps, *, key_id: str = NO_KEY) -> None: ...
    async def reserve_spend(
        self, conversation: str, amount_usd: float, caps: SpendCaps, *, key_id: str = NO_KEY
    ) -> str: ...
    async def settle_spend(self, reservation: str, cost_usd: float) -> None: ...


class SearchStore(Protocol):
    """Passages, their vectors, and the search in them."""

    async def search(
        self,
        query: str,
        *,
        scopes: Sequence[str],
        limit: int = 20,
        vector: "ArrayLike | None" = None,
        embedder: str | None = None,
    ) -> list[SearchHit]: ...
    async def put_passages(self, scope: str, items: Iterable[Passage], *, replacing: Collection[str] = ()) -> None: ...
    async def delete_passages(self, scope: str, keys: Collection[str]) -> None: ...
    async def get_passages(self, scope: str, key: str) -> list[Passage]: ...
    async def list_unembedded(self, scope: str, *, embedder: str, limit: int = 500) -> list[UnembeddedPassage]: ...
    async def put_vectors(self, scope: str, passage_vectors: Sequence[PassageVector], *, embedder: str) -> None: ...


class MessageIndexStore(Protocol):
    """The message index: segments of each branch, and an inverted index over all of them."""

    async def list_segments(self, conversation: str, *, branch: int = MAIN_BRANCH) -> list[SegmentRef]: ...
    async def read_segments(self, conversation: str, refs: Sequence[SegmentRef]) -> list[SegmentData]: ...
    async def has_unindexed(self, *, conversations: Collection[str] | None = None) -> bool: ...
    async def read_indexing_batch(
        self, *, max_entries: int, embedder: str | None = None, conversations: Collection[str] | None = None
    ) -> IndexingBatch: ...
    async def put_segments(
        self, updates: Sequence[SegmentUpdate], *, indexed: Sequence[IndexedBranch] = ()
    ) -> list[SegmentUpdate]: ...
    async def mark_unembedded(self, embedder: str) -> int: ...
    async def reset_index_format(self) -> None: ...
    async def read_message_index(self, query_terms: Collection[str], *, after_revision: int) -> MessageIndexRead: ...
    async def read_messages(
        self, keys: Sequence[MessageKey]
    ) -> tuple[list[Entry | None], dict[str, ConversationRecord]]: ...
    async def list_conversation_ids(self, *, project: str | None = None, client: str | None = None) -> list[str]: ...


class MemoryStore(Protocol):
    """Memories of agents, by namespace."""

    async def add_memory(
        self, namespace: str, text: str, *, citation: Citation | None = None, source: str | None = None
    ) -> Memory: ...
    async def replace_memory(
        self, memory: str, text: str, *, citation: Citation | None = None, source: str | None = None
    ) -> Memory: ...
    async def retire_memory(self, memory: str) -> Memory: ...
    async def get_memory(self, id: str) -> Memory: ...
    async def list_memories(
        self, namespace: str, *, include_retired: bool = False, limit: int = 50, before: Memory | None = None
    ) -> list[Memory]: ...


class DocumentStore(Protocol):
    """Index of the documents of vaults."""

    async def put_documents(self, vault: str, items: Sequence[IndexedDocument]) -> None: ...
    async def touch_documents(self, vault: str, touched: Sequence[tuple[str, int, int]]) -> None: ...
    async def delete_documents(self, vault: str, paths: Collection[str]) -> None: ...
    async def list_document_fingerprints(self, vault: str) -> list[DocumentFingerprint]: ...
    async def list_documents(self, vault: str, *, paths: Collection[str] | None = None) -> list[VaultDocument]: ...


class ImportStore(Protocol):
    """Bulk import of messages that another program stored."""

    async def list_imported(self, conversation_ids: Collection[str]) -> dict[str, ImportLedger]: ...
    async def find_live_sessions(self, client: str, sessions: Collection[str]) -> set[str]: ...
    async def import_items(self, batches: Sequence[ImportBatch]) -> list[dict[str, Position]]: ...


class TranscriptStore(Protocol):
    """Transcripts of agents as they wrote them."""

    async def append_transcript(
        self, key: TranscriptKey, lines: Sequence[TranscriptLine], *, fold_summary: SummaryFold | None = None
    ) -> int: ...
    async def load_transcript(self, key: TranscriptKey) -> list[str] | None: ...
    async def list_transcripts(self, project: str) -> list[TranscriptRecord]: ...
    async def list_transcript_subpaths(self, project: str, session: str) -> list[str]: ...
    async def delete_transcript(self, key: TranscriptKey) -> None: ...
    async def link_transcript(self, key: TranscriptKey, conversation: str) -> None: ...


class SampleStore(Protocol):
    """Random samples of conversations."""

    async def list_sample_frame(self, *, limit: int) -> list[str]: ...
    async def draw_messages(self, random_paths: Sequence[bytes]) -> list[str]: ...
    async def count_messages(self, conversation: str) -> int: ...


class UsageStore(Protocol):
    """The usage roll-up: statistics by day, model, project, source, slot and tool."""

    async def has_uncounted(self) -> bool: ...
    async def count_usage(self, *, max_entries: int = BATCH_ENTRIES) -> int: ...
    async def read_usage(
        self, *, since_day: int = 0, groupings: Sequence[UsageGrouping] = USAGE_GROUPINGS, limit: int = 20
    ) -> RollupReport: ...
    async def read_document_pairs(self, *, limit: int = 100) -> list[DocumentPair]: ...
    async def recount_usage(self) -> RecountResult: ...


class Store(
    LogStore,
    LedgerStore,
    SearchStore,
    MessageIndexStore,
    MemoryStore,
    DocumentStore,
    ImportStore,
    TranscriptStore,
    SampleStore,
    UsageStore,
    Protocol,
):
    """Everything that an engine needs."""

    @property
    def tenant(self) -> str: ...
    async def close(self) -> None: ...


class KeyStore(Protocol):
    """API keys, for the authentication of a server."""

    async def create_key(
        self,
        name: str,
        scopes: Collection[str],
        *,
        expires_at: int | None = None,
        requests_per_minute: int | None = None,
        max_spend: float | None = None,
        models: Sequence[str] | None = None,
    ) -> tuple[ApiKey, str]: ...
    async def list_keys(self, *, limit: int = 100, before: KeyPosition | None = None) -> list[ApiKey]: ...
    async def revoke_key(self, id: str) -> ApiKey: ...
    async def verify_key(self, presented: str) -> ApiKey | None: ...


class WorklistStore(Protocol):
    """The sweep for missing background work, over all tenants."""

    async def list_updated_conversations(
        self, *, since: int, until: int, limit: int = 500, after: ConversationActivity | None = None
    ) -> list[ConversationActivity]: ...
    async def get_sweep_time(self, name: str) -> int | None: ...
    async def record_sweep(self, name: str, until: int) -> None: ...
    async def list_unembedded_scopes(self, *, embedder: str) -> list[str]: ...
