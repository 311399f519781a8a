"""`SqlStore`: the asynchronous store on SQLite and PostgreSQL, for one tenant.

Every operation is a function on a connection, which a method runs in one transaction. The store itself holds the log.
Keys, spending, usage, leases and the index are in its parts.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps

from cachetools import LRUCache

from quire.access.keys import Keys, RateLimits
from quire.access.spending import Spending
from quire.db import dialects, migrate
from quire.db.database import (
    BULK_STATEMENT_SECONDS,
    Database,
    LossCallback,
    ObservedDatabase,
    PoolStats,
    TransactionObserver,
    TransactionOptions,
)
from quire.db.notifications import Notifications
from quire.db.store_part import (
    Method,
    P,
    StoreFunction,
    StorePart,
    T,
    TenantDatabase,
    read,
    read_bulk,
    read_inline,
    write,
    write_bulk,
    write_conversation,
)
from quire.db.tenant_keys import TenantKeys
from quire.errors import BlobNotFound, ObjectStorageUnavailable, StoreError
from quire.index.documents import Documents
from quire.index.memories import Memories
from quire.index.message_index import MessageIndex
from quire.index.passages import Passages
from quire.log import blobs, conversations, exchanges, history_match, ledger, reads
from quire.log.conversations import with_branch
from quire.log.imports import Imports
from quire.log.secret_masker import SecretMasker, build_maskers
from quire.log.titles import fill_titles
from quire.log.transcripts import Transcripts
from quire.log.types import (
    MAIN_BRANCH,
    Blob,
    Branch,
    ConversationRecord,
    IntegrityFault,
    MessageKey,
    ReplyRecord,
    TenantPurge,
    ValuePurge,
    Window,
)
from quire.model import Entry, EntryKind, Manifest, Role, Span
from quire.objects import MissingObject, ObjectStorage
from quire.rows import DEFAULT_TENANT
from quire.settings.schema import TenantMasking
from quire.store import integrity
from quire.store.all_tenants import AllTenants
from quire.store.archives import Offloading, verify_stored
from quire.store.conversation_samples import ConversationSamples
from quire.store.purge import count_value_rows, erase_value, purge_entries, purge_tenant
from quire.store.reimport import Reimport
from quire.store.turn_records import append_items, open_conversation, record_reply
from quire.turns.events import TurnEvents
from quire.turns.leases import TurnLeases
from quire.usage.contribution import NANOS_PER_DOLLAR
from quire.usage.report import UsageRollup


def _erase(function: StoreFunction[P, T]) -> Method[P, T]:
    """A bulk write that erases content, also from the disk."""

    @wraps(function)
    async def method(part: StorePart, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            erased = await part.run(write_bulk, function, *args, **kwargs)
        except StoreError as error:
            if not blobs.is_missing_blob(error):
                raise
            # A concurrent append referenced a blob that was being deleted; the retry sees the reference and retains it.
            erased = await part.run(write_bulk, function, *args, **kwargs)
        await part.base.database.scrub()
        if isinstance(part, SqlStore):
            await part.offloading.collect()
        return erased

    return method


class SqlStore(StorePart):
    """The log in SQLite or PostgreSQL."""

    def __init__(
        self,
        database: Database,
        *,
        tenant: str = DEFAULT_TENANT,
        max_stored_bytes: int | None = None,
        masker_for: Callable[[str], SecretMasker | None] = lambda _: None,
        keys: TenantKeys | None = None,
        objects: ObjectStorage | None = None,
    ) -> None:
        self._objects = objects
        self._masker_for, self.masker = masker_for, masker_for(tenant)
        base = TenantDatabase(database, tenant, max_stored_bytes=max_stored_bytes, masker=self.masker, keys=keys)
        super().__init__(base)
        self.passages = Passages(base)
        self.message_index = MessageIndex(base)
        self.memories = Memories(base)
        self.documents = Documents(base)
        self.imports = Imports(base)
        self.reimport = Reimport(base)
        self.transcripts = Transcripts(base)
        self.usage = UsageRollup(base)
        self.keys = Keys(base)
        self.spending = Spending(base)
        self.rate_limits = RateLimits(base)
        self.leases = TurnLeases(base)
        self.turn_events = TurnEvents(base)
        self.samples = ConversationSamples(base)
        self.all_tenants = AllTenants(base)
        self.offloading = Offloading(base, objects)
        self._known_blobs: LRUCache[bytes, None] = LRUCache(blobs.MAX_KNOWN_BLOBS)
        """Digests of stored blobs, which are not sent again. A purge may make it stale."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        tenant: str = DEFAULT_TENANT,
        listen_url: str | None = None,
        masking: Mapping[str, TenantMasking] | None = None,
        keys: TenantKeys | None = None,
        object_storage: str | None = None,
    ) -> AsyncGenerator["SqlStore"]:
        """Opens `sqlite:///path` (created and migrated if needed) or `postgresql://…` (see `quire db upgrade`).

        If `url` leads to a pooler, `listen_url` leads past it, for the connection of `notifications`. `masking`
        names the tenants whose secrets are masked before they are stored, and `keys` encrypts what is stored.
        `object_storage` is the URL of what was moved there: see `quire.store.archives`."""
        objects = ObjectStorage(object_storage) if object_storage is not None else None
        encrypts = keys is not None and keys.wrapper is not None
        database = await dialects.open_database(url, listen_url=listen_url, encrypts=encrypts)
        store = cls(database, tenant=tenant, masker_for=build_maskers(masking or {}), keys=keys, objects=objects)
        try:
            yield store
        finally:
            await store.close()

    def for_tenant(self, tenant: str, *, max_stored_bytes: int | None = None) -> "SqlStore":
        """A store for another tenant on the same database, with its quota; closing either closes both."""
        return SqlStore(
            self.base.database,
            tenant=tenant,
            max_stored_bytes=max_stored_bytes,
            masker_for=self._masker_for,
            keys=self.base.keys,
            objects=self._objects,
        )

    async def close(self) -> None:
        await self.base.database.close()

    @property
    def tenant(self) -> str:
        return self.base.tenant

    @property
    def notifications(self) -> Notifications:
        """Notifications between the processes that use the database, of all tenants."""
        return self.base.database.notifications

    async def check(self, *, max_age_seconds: float = 0.0) -> None:
        """Health check: raises a `StoreError` unless the database has the current schema and accepts writes.

        The result of the write test may be as old as `max_age_seconds`.
        """
        database = self.base.database
        await database.check_writable(max_age_seconds=max_age_seconds)
        await database.read(migrate.check_version, TransactionOptions(self.tenant))

    async def check_recordable(self) -> None:
        """Raises `StoreUnavailable` unless a reply could be recorded now: see `Database.check_recordable`."""
        await self.base.database.check_recordable()

    def on_connection_loss(self, callback: LossCallback) -> None:
        """Calls back when a connection to the database broke, so that caches of its state can be cleared."""
        self.base.database.on_connection_loss(callback)

    def observe_transactions(self, observer: TransactionObserver) -> None:
        """Reports every future transaction of this store, and of stores derived from it, to `observer`."""
        self.base.database = ObservedDatabase(self.base.database, observer)

    def get_pool_stats(self) -> PoolStats:
        return self.base.database.get_pool_stats()

    create_conversation = write(conversations.create_conversation)
    open_conversation = write(open_conversation)
    get_conversation = read_inline(conversations.get_conversation)
    list_conversations = read(conversations.list_conversations)
    list_conversation_ids = read(conversations.list_conversation_ids)
    list_origins = read(conversations.list_origins)
    list_tags = read(conversations.list_tags)
    list_session = read(conversations.list_session)
    rename_conversation = write_conversation(conversations.rename_conversation)
    get_metadata = read(conversations.get_metadata)
    set_metadata = write_conversation(conversations.set_metadata)
    set_tags = write_conversation(conversations.set_tags)
    take_over = write_conversation(conversations.take_over)
    fill_titles = read(fill_titles)
    sum_tokens = read(reads.sum_tokens)
    list_branches = read(conversations.list_branches)
    fork = write_conversation(conversations.create_fork)
    append = write_conversation(append_items)
    match_history = read_inline(history_match.match_history)
    get_request = read_inline(ledger.get_request)
    find_response = read_inline(ledger.find_response)
    forget_response = write(ledger.forget_response)
    get_calibration = read_inline(ledger.get_calibration)
    put_blob = write(blobs.put_blob)
    is_purged = read(conversations.is_purged)
    has_purged_content = read_inline(exchanges.has_purged_content)
    begin_exchange = write(exchanges.begin_exchange)
    end_exchange = write(exchanges.end_exchange)
    list_unanswered = read(exchanges.list_unanswered)
    find_exchange = read(exchanges.find_exchange)
    read_exchange = read(exchanges.read_content)
    verify_tenant = read_bulk(integrity.verify_tenant)
    purge = _erase(purge_entries)
    _erase_value = _erase(erase_value)
    _count_value_rows = read_bulk(count_value_rows)

    async def purge_value(self, value: str) -> ValuePurge:
        """Erases this text, such as a leaked key, from every row and object of the tenant."""
        await self.offloading.restore_containing(value)
        return await self._erase_value(value)

    async def find_value(self, value: str) -> dict[str, int]:
        """The number of rows that contain this text, by table. What is in object storage and contains it comes back."""
        await self.offloading.restore_containing(value)
        return await self._count_value_rows(value)

    async def thin_manifests(self, conversation: str, *, before: int) -> int:
        """Removes what only a replay needs from the manifests of replies from before a time. Returns their number."""
        from quire.log.thin_manifests import thin_manifests

        return await self.run(write_bulk, thin_manifests, conversation, before=before)

    async def get_blob(self, digest: str) -> Blob:
        stored = await self.run(read, blobs.get_stored_blob, digest)
        if stored.object is None:
            return blobs.check_blob(stored.blob, digest)
        try:
            data = await self.offloading.read_object(stored.object)
        except MissingObject:
            # It came back into the database, or was purged, since the row was read.
            stored = await self.run(read, blobs.get_stored_blob, digest)
            if stored.object is not None:
                raise
            data = stored.blob.data
        return blobs.check_blob(stored.blob._replace(data=data), digest)

    async def read_messages(
        self, keys: Sequence[MessageKey]
    ) -> tuple[list[Entry | None], dict[str, ConversationRecord]]:
        """The messages with these keys, wherever they are, and their conversations by id. None for one that is gone or
        purged, or cannot be read because the object storage is away."""
        found, records = await self.message_index.read_messages(keys)
        missing = [key for key, entry in zip(keys, found, strict=True) if entry is None]
        if not missing or not self.offloading.is_enabled:
            return found, records
        try:
            archived = await self.offloading.read_messages(missing)
        except ObjectStorageUnavailable:
            return found, records
        return [entry or archived.get(key) for key, entry in zip(keys, found, strict=True)], records

    async def verify_conversation(self, conversation: str) -> list[IntegrityFault]:
        """The faults of a conversation. An empty list means that every byte is as it was recorded."""
        read_object = self.offloading.read_in_transaction
        return await self.run(read_bulk, verify_stored, conversation, read_object=read_object)

    async def purge_tenant(self) -> TenantPurge:
        """Deletes every row and object of the tenant and its data key, also from the disk. Needs no key-encryption
        key."""
        database, tenant, offloading = self.base.database, self.tenant, self.offloading
        if await offloading.has_objects():
            offloading.get_storage()
        # First the objects, because the rows name them: after a failure, the purge can be repeated.
        objects = await offloading.delete_all() if offloading.is_enabled else 0
        options = TransactionOptions(tenant, statement_seconds=BULK_STATEMENT_SECONDS)
        purged = await database.write(lambda connection: purge_tenant(connection, tenant), options)
        await database.scrub()
        if offloading.is_enabled:
            # Those of an upload that ran meanwhile.
            objects += await offloading.delete_all()
        return purged._replace(objects=objects)

    async def rewrap_keys(self) -> list[str]:
        """Wraps the data keys of all encrypted tenants with the current key-encryption key. Returns the tenants."""
        rewrapped = [
            tenant
            for tenant in await self.all_tenants.list_encrypted_tenants()
            if await self.base.keys.rewrap(self.base.database, tenant)
        ]
        await self.base.database.scrub()
        return rewrapped

    async def get_branch(self, conversation: str, number: int = MAIN_BRANCH) -> Branch:
        """The branch, with its entries in the database."""
        params = {"tenant": self.tenant, "conversation": conversation, "branch": number}
        for row in await self.base.fetch(conversations.BRANCH, params):
            branch = conversations.parse_branch_row(row)
            if not branch.state.offloaded:
                return branch
        # Restores the entries, or says what is missing.
        return await self.run(read_inline, with_branch(lambda _, __, branch: branch), conversation, number)

    async def fetch_branches(self, conversation: str) -> list[Branch]:
        """All branches by number, in one round trip; none of an unknown conversation."""
        params = {"tenant": self.tenant, "conversation": conversation}
        return list(map(conversations.parse_branch_row, await self.base.fetch(conversations.ALL_BRANCHES, params)))

    async def get_entry(self, conversation: str, seq: int, *, branch: int = MAIN_BRANCH) -> Entry:
        return await self.run(read_inline, with_branch(reads.get_entry), conversation, branch, seq)

    async def get_entries(self, conversation: str, seqs: Collection[int], *, branch: int = MAIN_BRANCH) -> list[Entry]:
        """These entries in ascending order. Unknown numbers are skipped."""
        return await self.run(read_inline, with_branch(reads.read_entries), conversation, branch, seqs)

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
    ) -> list[Entry]:
        """Entries `first` to `last`, oldest first; with `limit`, the oldest of them."""
        return await self.run(
            read_inline,
            with_branch(reads.read_range),
            conversation,
            branch,
            first=first,
            last=last,
            kinds=kinds,
            roles=roles,
            limit=limit,
        )

    async def list_referencing_entries(self, conversation: str, *, branch: int = MAIN_BRANCH) -> list[Entry]:
        """Entries of a branch whose metadata references documents, oldest first."""
        return await self.run(read, with_branch(reads.read_referencing_entries), conversation, branch)

    async def find_replies(self, conversation: str, text: str, *, branch: int = MAIN_BRANCH) -> list[Entry]:
        """Replies of the branch whose content or metadata has the text, such as an ID of an upstream."""
        return await self.run(read, with_branch(reads.find_replies), conversation, branch, text)

    async def read_tail(
        self,
        conversation: str,
        limit: int,
        *,
        branch: int = MAIN_BRANCH,
        last: int | None = None,
        kinds: Collection[EntryKind] | None = None,
        roles: Collection[Role] | None = None,
    ) -> list[Entry]:
        """The newest `limit` entries up to `last`, oldest first."""
        return await self.run(
            read_inline,
            with_branch(reads.read_tail),
            conversation,
            branch,
            limit=limit,
            last=last,
            kinds=kinds,
            roles=roles,
        )

    async def read_window(
        self,
        conversation: str,
        *,
        branch: int = MAIN_BRANCH,
        max_tokens: int | None = None,
        known: Window | None = None,
        read_branch: Branch | None = None,
    ) -> Window:
        """The active compaction and the messages that it does not cover, independent of the history's length.

        With `max_tokens`, a long window is read only from its end, until it has that many tokens. Entries of `known`,
        a window of this branch that was read before, are not read again unless they were purged since. With
        `read_branch`, the row of the branch as it was just read, one round trip is enough for what is new."""
        if read_branch is not None and known is not None:
            changed = reads.find_changed_range(known, read_branch)
            if changed is not None:
                params = {"tenant": self.tenant, "conversation": conversation, **changed}
                rows = await self.base.fetch(reads.CHANGED, params)
                window = reads.extend_window(known, read_branch, rows, max_tokens=max_tokens)
                if window is not None:
                    return window
        return await self.run(
            read_inline, with_branch(reads.read_window), conversation, branch, max_tokens=max_tokens, known=known
        )

    async def record_reply(
        self, conversation: str, record: ReplyRecord, *, branch: int = MAIN_BRANCH, after: bytes | None = None
    ) -> list[Entry]:
        """Appends a turn like `append`, and stores the manifest of its request in the same transaction."""
        known_blobs = self._known_blobs
        digests = {blobs.compute_digest(blob): blob for blob in record.blobs}
        new_blobs = tuple(blob for digest, blob in digests.items() if digest not in known_blobs)
        recorded = partial(record_reply, conversation=conversation, branch=branch, after=after)
        options = TransactionOptions(self.tenant, conversation=conversation)
        new_record = record._replace(blobs=new_blobs)
        try:
            stored = await self.base.write(
                lambda connection: recorded(connection, self.tenant, record=new_record), options
            )
        except (BlobNotFound, StoreError) as error:
            if not (len(known_blobs) and blobs.is_missing_blob(error)):
                raise
            # A purge deleted a blob that this process considers stored; retry with all blobs.
            known_blobs.clear()
            stored = await self.base.write(lambda connection: recorded(connection, self.tenant, record=record), options)
        known_blobs.update(dict.fromkeys(digests))
        return stored

    async def get_manifest(self, conversation: str, seq: int, *, branch: int = MAIN_BRANCH) -> Manifest:
        """The manifest of the request that entry `seq` answered."""
        return await self.run(read_inline, with_branch(ledger.get_manifest), conversation, branch, seq)

    async def get_request_body(self, conversation: str, seq: int, *, branch: int = MAIN_BRANCH) -> bytes | None:
        """The body of the request that entry `seq` answered, as the gateway sent it, or None if it is not stored."""
        return await self.run(read, with_branch(exchanges.get_body), conversation, branch, seq)

    async def get_request_bodies(
        self, conversation: str, seqs: Sequence[int], *, branch: int = MAIN_BRANCH
    ) -> dict[int, bytes]:
        """The stored bodies of the requests that these entries answered, by number."""
        return await self.run(read_bulk, with_branch(exchanges.get_bodies), conversation, branch, seqs)

    async def list_manifests(
        self, conversation: str, *, branch: int = MAIN_BRANCH, limit: int | None = None, last: int | None = None
    ) -> list[tuple[int, Manifest]]:
        """The newest `limit` manifests of a branch with the numbers of their replies, oldest first."""
        return await self.run(read, with_branch(ledger.list_manifests), conversation, branch, limit=limit, last=last)

    async def list_manifest_texts(
        self, conversation: str, *, branch: int = MAIN_BRANCH, first: int, last: int
    ) -> list[tuple[int, str]]:
        """The manifests of the replies `first` to `last` of a branch, as stored JSON, oldest first."""
        return await self.run(
            read, with_branch(ledger.list_manifest_texts), conversation, branch, first=first, last=last
        )

    async def list_roles(self, conversation: str, *, branch: int = MAIN_BRANCH) -> list[tuple[int, str]]:
        """Numbers and roles of the questions and replies of a branch, without their content, oldest first."""
        return await self.run(read, with_branch(reads.list_roles), conversation, branch)

    async def sum_message_tokens(self, conversation: str, *, branch: int = MAIN_BRANCH, span: Span) -> int:
        """Tokens of the messages in this range of a branch, summed in the database."""
        return await self.run(
            read, with_branch(reads.sum_message_tokens), conversation, branch, first=span.first, last=span.last
        )

    async def get_conversation_cost(self, conversation: str) -> float:
        """Cost of the conversation's model calls in US dollars: what was charged, and what imported calls cost by the
        price list. Calls without a known price count 0."""
        charged = await self.spending.get_cost(conversation)
        if not await self.imports.has_imported(conversation):
            return charged
        return charged + (await self.usage.read_conversation(conversation)).imported_nanos / NANOS_PER_DOLLAR

    async def export_conversation(self, conversation: str) -> AsyncGenerator[str]:
        """The conversation as JSON Lines, up to the heads that its branches had at the start."""
        from quire.store import export_import as lines

        record = await self.get_conversation(conversation)
        yield lines.ConversationLine(
            format=lines.EXPORT_FORMAT,
            id=record.id,
            title=record.title,
            created_at=record.created_at,
            origin=record.origin,
            tags=record.tags or None,
            metadata=await self.get_metadata(conversation) or None,
        ).canonical_json()
        for digest in await self.run(read_bulk, blobs.list_used_blobs, conversation):
            blob = await self.get_blob(digest)
            data = b64encode(blob.data).decode()
            yield lines.BlobLine(digest=digest, media_type=blob.media_type, data=data).canonical_json()
        count = 0
        for branch in await self.list_branches(conversation):
            yield lines.BranchLine(
                number=branch.number, name=branch.name, created_at=branch.created_at, lineage=branch.lineage
            ).canonical_json()
            for first in range(branch.fork_seq + 1, branch.head_seq + 1, lines.EXPORT_BATCH_SIZE):
                last = min(first + lines.EXPORT_BATCH_SIZE - 1, branch.head_seq)
                for entry in await self.read_range(conversation, branch=branch.number, first=first, last=last):
                    yield lines.format_entry_line(entry)
                    count += 1
            for seq, manifest in await self.run(
                read_bulk, with_branch(ledger.list_own_manifests), conversation, branch.number
            ):
                yield f'{{"line":"manifest","branch":{branch.number},"seq":{seq},"manifest":{manifest}}}'
        for line in await self.run(read_bulk, lines.list_exchange_lines, conversation):
            yield line
        yield lines.EndLine(entries=count).canonical_json()

    async def import_conversation(self, lines: Iterable[str], *, as_id: str | None = None) -> ConversationRecord:
        """Imports an exported conversation in one transaction, under another id if one is given."""
        from quire.store.export_import import import_lines

        return await self.run(write_bulk, import_lines, lines, as_id=as_id)
