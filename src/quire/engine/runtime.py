"""`EngineRuntime`: the mutable state that an engine shares with its variants.

It holds caches, token calibrations, event listeners, compaction hooks and background jobs. Every cache is keyed by all
parts of the configuration that its values depend on, so that variants can share it.
"""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cachetools import LRUCache, TTLCache

from quire.concurrency.worker_threads import run_sized
from quire.context.selection import Selector
from quire.engine.background_jobs import BackgroundJobs, InProcessJobs
from quire.engine.reported_windows import ReportedWindows
from quire.errors import BlobNotFound
from quire.index.types import SegmentRef
from quire.llm import get_model
from quire.llm.embeddings import Embedder
from quire.log import Branch, Window
from quire.log.exchanges import SentBody
from quire.model import Entry, Policy
from quire.store import SqlStore
from quire.view.budget import Calibration
from quire.view.compaction_plan import CompactionPlan
from quire.view.recalled_messages import RecallCandidate
from quire.view.rendered import MessageCounter
from quire.wire import WireFormatName, wire_format_for
from quire.wire.tokens import counter_for

if TYPE_CHECKING:
    from quire.llm.http_model import HTTPModel
    from quire.model.context_events import ContextEvent
    from quire.search.catalog import MessageCatalog
    from quire.search.index import RecallIndex
    from quire.search.segments import Segment

MAX_CACHED_BLOBS = 200
"""Blobs in the cache. The cache is cleared when it holds more."""
MAX_CACHED_BLOB_BYTES = 32_000_000
"""Bytes of the blobs in the cache, as base64. The cache is cleared when it holds more."""
IDLE_CONVERSATION_SECONDS = 900.0
"""Seconds without a request after which the caches of a conversation expire."""
MAX_WINDOW_BYTES = 16_000_000
"""Bytes of the cached windows of recent requests. A larger window is not cached."""
MAX_SENT_BODY_BYTES = 16_000_000
"""Bytes of the cached bodies, each the last one of its conversation, that the next ones are stored as deltas to."""
ENTRY_BYTES = 600
"""Bytes that an entry of a cached window takes in addition to its text."""
MAX_RECALL_INDEX_BYTES = 256_000_000
"""Bytes of cached recall indexes. A message takes about 900."""
MAX_RECALLED_BYTES = 32_000_000
"""Bytes of cached messages that were recalled, which the next requests of their conversations often recall again."""
MAX_CONVERSATION_RECALLED_BYTES = 2_000_000
"""Bytes of these that one branch keeps from earlier requests."""
MAX_CATALOG_BYTES = 2_000_000_000
"""Bytes of the cached message catalogs of all tenants. A message takes about 120. One tenant of ten million messages
and many small ones fit, so that these do not drop what takes the first search half a minute to read."""
MAX_CACHED_SUMMARIES = 10_000
"""Extractive summaries of documents in the LRU cache."""
MAX_MESSAGE_COUNTERS = 100
"""Message counters in the LRU cache: one for each model in use."""
MAX_MODELS = 32
"""Model clients in the LRU cache: one for each model and server in use."""
MAX_CALIBRATIONS = 1_000
"""Calibrations in the LRU cache: one for each model, by the name that a client gives. The store has them all."""
_BLOB_FIELD = '"blob":"'
_SCAN_SPEEDUP = 50
"""A search for a literal is about this many times faster than other work on a text."""

BeforeCompaction = Callable[[str, CompactionPlan], Awaitable[bool]]
"""Called with the conversation's id and the plan; returning False vetoes the compaction."""
AfterCompaction = Callable[[str, Entry], Awaitable[None]]
"""Called with the conversation's id and the compaction's entry."""


class CachedIndex(NamedTuple):
    """The merged recall index of a branch, and the segments that it was merged from."""

    refs: tuple[SegmentRef, ...]
    segments: tuple["Segment", ...]
    merged: "RecallIndex"

    @property
    def nbytes(self) -> int:
        return self.merged.nbytes + sum(segment.nbytes for segment in self.segments)


SegmentVersion = tuple[int, int]
"""Number of a segment of the message index, and of the changes to its rows. As long as both are the same, no message
in it was erased."""
RecalledMessages = dict[int, tuple[SegmentVersion, RecallCandidate]]
"""Short messages of a branch that were recalled, by their number; each with the version of its segment."""


class CatalogCache:
    """LRU cache of message catalogs by tenant and embedder, bounded by bytes. A catalog is changed under its lock."""

    def __init__(self) -> None:
        self._catalogs: OrderedDict[tuple[str, str | None], tuple[asyncio.Lock, MessageCatalog]] = OrderedDict()
        self._sizes: dict[tuple[str, str | None], int] = {}
        self._total = 0

    def get(self, tenant: str, embedder: str | None) -> "tuple[asyncio.Lock, MessageCatalog]":
        """The catalog of a tenant, empty at first, and its lock."""
        from quire.search.catalog import MessageCatalog

        key = (tenant, embedder)
        if key not in self._catalogs:
            self._catalogs[key] = asyncio.Lock(), MessageCatalog(embedder)
        self._catalogs.move_to_end(key)
        return self._catalogs[key]

    def clear(self) -> None:
        self._catalogs.clear()
        self._sizes.clear()
        self._total = 0

    def evict(self, tenant: str, embedder: str | None) -> None:
        """Drops the least recently used catalogs above `MAX_CATALOG_BYTES`, after this one has changed. One alone may
        be larger."""
        key = (tenant, embedder)
        if key in self._catalogs:
            size = self._catalogs[key][1].nbytes
            self._total += size - self._sizes.get(key, 0)
            self._sizes[key] = size
        while len(self._catalogs) > 1 and self._total > MAX_CATALOG_BYTES:
            dropped, _ = self._catalogs.popitem(last=False)
            self._total -= self._sizes.pop(dropped, 0)


class IndexCaches:
    """What search and recall keep in memory. The engines of all tenants share it, so its bounds are for the whole
    process."""

    def __init__(self) -> None:
        self.catalogs = CatalogCache()
        self.recall_indexes: LRUCache[tuple[str, str, int, str | None], CachedIndex] = LRUCache(
            MAX_RECALL_INDEX_BYTES, getsizeof=_measure_index
        )
        self.recalled: TTLCache[tuple[str, str, int, str], RecalledMessages] = TTLCache(
            MAX_RECALLED_BYTES, IDLE_CONVERSATION_SECONDS, getsizeof=measure_recalled
        )
        """By tenant, conversation, branch, and name of the counter of their tokens."""

    def clear(self) -> None:
        """Drops what was read from the log."""
        self.catalogs.clear()
        self.recall_indexes.clear()
        self.recalled.clear()


class EngineRuntime:
    """State that an engine and its variants share. It belongs to one store."""

    def __init__(self, *, jobs: BackgroundJobs | None = None, indexes: IndexCaches | None = None) -> None:
        self.jobs: BackgroundJobs = jobs or InProcessJobs()
        self.indexes = indexes or IndexCaches()
        self.hooks = CompactionHooks()
        self.spend_lock = asyncio.Lock()
        self.blobs = BlobCache()
        self.listeners: list[Callable[[ContextEvent], None]] = []
        self.calibrations: LRUCache[str, Calibration] = LRUCache(MAX_CALIBRATIONS)
        self.reported_windows = ReportedWindows()
        self.windows: TTLCache[tuple[str, int], Window] = TTLCache(
            MAX_WINDOW_BYTES, IDLE_CONVERSATION_SECONDS, getsizeof=_measure_window
        )
        self.sent_bodies: TTLCache[str, SentBody] = TTLCache(
            MAX_SENT_BODY_BYTES, IDLE_CONVERSATION_SECONDS, getsizeof=lambda body: len(body.content)
        )
        """The last stored request of each conversation."""
        self.document_summaries: LRUCache[str, str] = LRUCache(MAX_CACHED_SUMMARIES)
        self._message_counters: LRUCache[tuple[str, str, str | None], MessageCounter] = LRUCache(MAX_MESSAGE_COUNTERS)
        self._models: LRUCache[tuple[str, str | None, WireFormatName], HTTPModel] = LRUCache(MAX_MODELS)
        self._selectors: dict[str | None, Selector] = {}

    def clear_log_caches(self) -> None:
        """Drops what was read from the log: after a connection loss, the database may be in an earlier state. What the
        tenants share is in `indexes`."""
        self.windows.clear()
        self.sent_bodies.clear()
        self.calibrations.clear()

    def emit(self, event: "ContextEvent") -> None:
        for listener in self.listeners:
            listener(event)

    async def read_window(
        self, store: SqlStore, conversation: str, branch: int, *, max_tokens: int, read_branch: Branch | None = None
    ) -> Window:
        """The window of a branch for its next request. Entries that its last request used are not read again."""
        key = (conversation, branch)
        known = self.windows.get(key)
        window = await store.read_window(
            conversation, branch=branch, max_tokens=max_tokens, known=known, read_branch=read_branch
        )
        if known is None or window.loaded is not known.loaded:
            if _measure_window(window) <= MAX_WINDOW_BYTES:
                self.windows[key] = window
            else:
                self.windows.pop(key, None)
        return window

    async def load_calibration(self, store: SqlStore, model: str) -> Calibration:
        if model not in self.calibrations:
            stored = await store.get_calibration(model)
            self.calibrations[model] = Calibration.parse(stored) if stored else Calibration()
        return self.calibrations[model]

    def message_counter_for(self, policy: Policy, tokenizer: str | None) -> MessageCounter:
        """The counter of a model, with its cache of rendered messages."""
        key = (policy.wire_format, policy.model, tokenizer)
        counter = self._message_counters.get(key)
        if counter is None:
            wire_format = wire_format_for(policy.wire_format, model=policy.model)
            tokens = counter_for(policy.model, tokenizer=tokenizer)
            counter = self._message_counters[key] = MessageCounter(tokens, wire_format, load_blob=self.blobs.get)
        return counter

    def model_for(self, name: str, base_url: str | None, wire_format: WireFormatName) -> "HTTPModel":
        """The client of a model. Blocks while the HTTP client is imported."""
        key = (name, base_url, wire_format)
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = get_model(name, base_url=base_url, wire_format=wire_format)
        return model

    def selector_for(self, embedder: Embedder | None) -> Selector:
        """The selector of an embedder, with its cache of vectors."""
        name = embedder.name if embedder is not None else None
        if name not in self._selectors:
            self._selectors[name] = Selector(embedder)
        return self._selectors[name]


class CompactionHooks:
    """Callbacks of the application that run before and after each compaction."""

    def __init__(self) -> None:
        self._before: list[BeforeCompaction] = []
        self._after: list[AfterCompaction] = []

    def before_compaction(self, hook: BeforeCompaction) -> BeforeCompaction:
        """Registers a hook; also works as a decorator."""
        self._before.append(hook)
        return hook

    def after_compaction(self, hook: AfterCompaction) -> AfterCompaction:
        """Registers a hook; also works as a decorator."""
        self._after.append(hook)
        return hook

    async def run_before(self, conversation: str, plan: CompactionPlan) -> bool:
        return all([await hook(conversation, plan) for hook in self._before])

    async def run_after(self, conversation: str, entry: Entry) -> None:
        for hook in self._after:
            await hook(conversation, entry)


class BlobCache:
    """In-memory cache of blobs as base64, so that rendering, which does no I/O, can look them up."""

    def __init__(self) -> None:
        # No LRU cache: one request may need more blobs than the limit, and all of them must stay until it is rendered.
        self._cache: dict[str, str] = {}

    def get(self, digest: str) -> str | None:
        return self._cache.get(digest)

    def put(self, digest: str, data: bytes) -> None:
        """Caches a blob that the next request includes but the store does not hold yet."""
        self._cache[digest] = base64.b64encode(data).decode()

    async def load(self, store: SqlStore, entries: Sequence[Entry], digests: Collection[str] = ()) -> None:
        """Loads the blobs that these entries reference, and those with these digests. Missing ones are skipped.

        A full cache is cleared first, except for the blobs to load: the store may not hold them yet.
        """

        # Most messages have no blobs, and decoding them all would be slow.
        def find_needed() -> set[str]:
            with_blobs = [
                entry
                for entry in entries
                if _BLOB_FIELD in entry.raw or (entry.raw_metadata and _BLOB_FIELD in entry.raw_metadata)
            ]
            return set(digests).union(*(entry.blob_digests() for entry in with_blobs))

        size = sum([len(entry.raw) for entry in entries])
        needed = await run_sized(size // _SCAN_SPEEDUP, find_needed)
        if len(self._cache) > MAX_CACHED_BLOBS or sum(map(len, self._cache.values())) > MAX_CACHED_BLOB_BYTES:
            self._cache = {digest: data for digest, data in self._cache.items() if digest in needed}
        for digest in needed - self._cache.keys():
            try:
                self.put(digest, (await store.get_blob(digest)).data)
            except BlobNotFound:
                continue


def _measure_window(window: Window) -> int:
    return ENTRY_BYTES * (1 + len(window.loaded)) + sum([len(entry.raw) for entry in window.loaded])


def measure_recalled(recalled: RecalledMessages) -> int:
    """Bytes of recalled messages in the cache: each has its text as JSON and as a line."""
    return sum([ENTRY_BYTES + 2 * len(candidate.entry.raw) for _, candidate in recalled.values()])


def _measure_index(cached: CachedIndex) -> int:
    """Size of a cached index. One that is larger than the cache fills it alone."""
    return min(cached.nbytes, MAX_RECALL_INDEX_BYTES)
