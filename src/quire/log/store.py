"""The store in SQL: the log's one asynchronous face, for SQLite and PostgreSQL alike.

Every method is one function on a connection, run in one transaction. A store speaks for one tenant.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import Connection

from quire.errors import BlobNotFound, StoreError
from quire.log import append, blobs, branches, dialects, ledger, purge, reading, recognition, titles, transfer, verify
from quire.log.archive import SqlArchive
from quire.log.database import Database
from quire.log.due import SqlDue
from quire.log.fresh import new_id, now
from quire.log.keys import SqlKeys
from quire.log.records import MAIN, Blob, Branch, Conversation, Fault, Filed, Match, Recognised, Turn, Window
from quire.log.steps import DEFAULT_TENANT, on_branch
from quire.model import Body, Draft, Entry, EntryKind, Manifest, Message, Role, path_of


class SqlStore(SqlArchive, SqlDue, SqlKeys):
    """The log in SQLite or PostgreSQL."""

    def __init__(self, database: Database, *, tenant: str = DEFAULT_TENANT) -> None:
        super().__init__(database, tenant=tenant)
        self._stored_blobs = blobs.StoredBlobs()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, tenant: str = DEFAULT_TENANT) -> AsyncGenerator["SqlStore"]:
        """Opens `sqlite:///path` (made and migrated if needed) or `postgresql://…` (migrated by `quire db upgrade`)."""
        store = cls(await dialects.connect(url), tenant=tenant)
        try:
            yield store
        finally:
            await store.close()

    def for_tenant(self, tenant: str) -> "SqlStore":
        """The same database for someone else; closing either closes both."""
        return SqlStore(self._database, tenant=tenant)

    async def close(self) -> None:
        await self._database.close()

    async def create_conversation(self, id: str | None = None, *, title: str = "") -> Conversation:
        at = now()
        conversation = Conversation(id or new_id(), title, at, at)
        await self._write(branches.create_conversation, conversation)
        return conversation

    async def conversation(self, id: str) -> Conversation:
        return await self._read_briefly(branches.get_conversation, id)

    async def conversations(self, *, limit: int = 50, before: Conversation | None = None) -> list[Conversation]:
        """Those used last first; `before` is the last one of the page before."""
        return await self._read(branches.list_conversations, limit=limit, before=before)

    async def titled(self, *found: Conversation) -> list[Conversation]:
        """The same; those without a title have the first words that a user said in them."""
        return await self._read(titles.with_titles, found)

    async def rename(self, conversation: str, title: str) -> None:
        await self._write(branches.rename_conversation, conversation, title)

    async def branch(self, conversation: str, number: int = MAIN) -> Branch:
        return await self._read_briefly(branches.get_branch, conversation, number)

    async def branches(self, conversation: str) -> list[Branch]:
        return await self._read(branches.list_branches, conversation)

    async def fork(self, conversation: str, *, at: int, branch: int = MAIN, name: str | None = None) -> Branch:
        """A new branch that shares everything up to and with entry `at` (0: nothing) and goes on from there."""
        return await self._write(branches.fork, conversation, branch=branch, at=at, name=name)

    async def append(
        self, conversation: str, *items: Draft | Body, branch: int = MAIN, after: bytes | None = None
    ) -> list[Entry]:
        """Appends all items or none. With `after` (a message's path, or ROOT) they go right after that message, once:
        what is stored there already is given back, and where something else is, `StaleHead` is raised."""
        drafts = [item if isinstance(item, Draft) else Draft(body=item) for item in items]
        return await self._write(append.append, conversation, drafts, branch=branch, after=after)

    async def entry(self, conversation: str, seq: int, *, branch: int = MAIN) -> Entry:
        return await self._read_briefly(on_branch(reading.get_entry), conversation, branch, seq)

    async def entries(self, conversation: str, seqs: Collection[int], *, branch: int = MAIN) -> list[Entry]:
        """These entries, in their order; numbers that there are none of are passed over."""
        return await self._read_briefly(on_branch(reading.read_entries), conversation, branch, seqs)

    async def range(
        self,
        conversation: str,
        *,
        branch: int = MAIN,
        first: int = 1,
        last: int | None = None,
        kinds: Collection[EntryKind] | None = None,
        roles: Collection[Role] | None = None,
        limit: int | None = None,
    ) -> list[Entry]:
        """Entries `first` to `last` in their order; with a limit, the oldest of them."""
        return await self._read_briefly(
            on_branch(reading.read_range),
            conversation,
            branch,
            first=first,
            last=last,
            kinds=kinds,
            roles=roles,
            limit=limit,
        )

    async def referring(self, conversation: str, *, branch: int = MAIN) -> list[Entry]:
        """The entries along a branch whose notes name documents, oldest first."""
        return await self._read(on_branch(reading.read_referring), conversation, branch)

    async def tail(
        self,
        conversation: str,
        limit: int,
        *,
        branch: int = MAIN,
        last: int | None = None,
        kinds: Collection[EntryKind] | None = None,
        roles: Collection[Role] | None = None,
    ) -> list[Entry]:
        """The newest `limit` entries up to `last`, oldest first."""
        return await self._read_briefly(
            on_branch(reading.read_tail),
            conversation,
            branch,
            limit=limit,
            last=last,
            kinds=kinds,
            roles=roles,
        )

    async def window(self, conversation: str, *, branch: int = MAIN, max_tokens: int | None = None) -> Window:
        """The active compaction and the messages that it leaves to be seen, whatever the length of the history.

        With `max_tokens`, of a long window only the end that has so many."""
        return await self._read_briefly(on_branch(reading.read_window), conversation, branch, max_tokens=max_tokens)

    async def longest_prefix(self, messages: Sequence[Message], *, conversation: str | None = None) -> Match | None:
        """Where the longest beginning of this list of messages is stored: here, or in whichever conversation has it."""
        candidates = list(path_of(message.canonical() for message in messages))
        found = await self._read_briefly(_find_longest, candidates, conversation)
        return found and Match(found[0] + 1, *found[1:])

    async def recognise(self, told: Sequence[bytes], *, conversation: str | None = None) -> Recognised | None:
        """Where a list of messages with these paths goes on, here or in whichever conversation has it.

        Of a named conversation without any of them, the branch in use is given, at its head; None if there is none."""
        return await self._read_briefly(recognition.recognise, told, conversation)

    async def record(
        self, conversation: str, turn: Turn, *, branch: int = MAIN, after: bytes | None = None
    ) -> list[Entry]:
        """Appends a turn as `append` does, and in the same transaction files the manifest of its request."""
        known = self._stored_blobs
        try:
            stored = await self._write(
                ledger.record_turn, conversation, turn, branch=branch, after=after, stored_blobs=known
            )
        except (BlobNotFound, StoreError) as error:
            if not (len(known) and blobs.is_missing(error)):
                raise
            # A purge took what was stored; this time everything is sent.
            known.forget()
            stored = await self._write(ledger.record_turn, conversation, turn, branch=branch, after=after)
        known.add(turn.blobs)
        return stored

    async def manifest(self, conversation: str, seq: int, *, branch: int = MAIN) -> Manifest:
        """The manifest of the request that entry `seq` answered."""
        return await self._read_briefly(on_branch(ledger.get_manifest), conversation, branch, seq)

    async def manifests(
        self, conversation: str, *, branch: int = MAIN, limit: int | None = None, last: int | None = None
    ) -> list[tuple[int, Manifest]]:
        """The newest `limit` requests of a branch with the number of their reply, oldest first."""
        return await self._read(on_branch(ledger.list_manifests), conversation, branch, limit=limit, last=last)

    async def request(self, id: str) -> Filed:
        """The answered request with this id, and where its reply stands."""
        return await self._read_briefly(ledger.get_request, id)

    async def calibration(self, model: str) -> str | None:
        """What was recorded last of how a model's reports compare with our counts, as JSON."""
        return await self._read_briefly(ledger.get_calibration, model)

    async def spend(self, conversation: str, dollars: float) -> float:
        """Adds to what the conversation's model calls have cost, and gives the sum."""
        return await self._write(ledger.spend, conversation, dollars)

    async def spent(self, conversation: str) -> float:
        """What the conversation's model calls have cost so far, in dollars."""
        return await self._read_briefly(ledger.get_spent, conversation)

    async def put_blob(self, data: bytes, *, media_type: str = "application/octet-stream") -> str:
        """Keeps these bytes and gives their digest; bytes that are there already are not kept twice."""
        return await self._write(blobs.put_blob, Blob(media_type, data))

    async def blob(self, digest: str) -> Blob:
        return await self._read(blobs.get_blob, digest)

    async def purge(self, conversation: str, seqs: Collection[int] | None = None, *, branch: int = MAIN) -> list[Entry]:
        """Removes the content of these entries, or of the whole conversation, and what was made from it:
        summaries, memories, and all that a search would find."""
        try:
            gone = await self._write(purge.purge, conversation, seqs, branch=branch)
        except StoreError as error:
            if not blobs.is_missing(error):
                raise
            # Someone quoted a text that was about to go; the second time that is seen, and the text stays.
            gone = await self._write(purge.purge, conversation, seqs, branch=branch)
        await self._database.scrub()
        return gone

    async def verify(self, conversation: str) -> list[Fault]:
        """Every entry that is not as it was written, on every branch; an empty list is a clean bill."""
        return await self._read(verify.verify, conversation)

    async def export(self, conversation: str) -> AsyncGenerator[str]:
        """The conversation as JSON Lines, as it stood when the export began."""
        yield transfer.conversation_line(await self.conversation(conversation))
        for digest in await self._read(blobs.quoted_by, conversation):
            yield transfer.blob_line(digest, await self.blob(digest))
        count = 0
        for branch in await self.branches(conversation):
            yield transfer.branch_line(branch)
            for first in range_(branch.fork_seq + 1, branch.head_seq + 1, transfer.PAGE):
                last = min(first + transfer.PAGE - 1, branch.head_seq)
                for entry in await self.range(conversation, branch=branch.number, first=first, last=last):
                    yield transfer.entry_line(entry)
                    count += 1
            for seq, manifest in await self._read(on_branch(ledger.own_manifests), conversation, branch.number):
                yield transfer.manifest_line(branch.number, seq, manifest)
        yield transfer.end_line(count)

    async def import_(self, lines: Iterable[str], *, rename: str | None = None) -> Conversation:
        """Stores an exported conversation, all of it or nothing, under another id if one is given."""
        return await self._write(transfer.import_lines, lines, rename=rename)


range_ = range


def _find_longest(
    connection: Connection, tenant: str, candidates: Sequence[bytes], conversation: str | None
) -> dialects.Found | None:
    return dialects.find_longest(connection, candidates, tenant=tenant, conversation=conversation)
