"""`BranchRecord`: reads a branch and the record of its requests, explains them, pins messages and sets priorities."""

from typing import TYPE_CHECKING

from quire.engine.context import EngineContext
from quire.errors import InvalidRequest
from quire.model import Decision, Entry, Manifest, Pin, Priority, Unpin
from quire.model.entry_bodies import MAX_PRIORITY, MIN_PRIORITY

if TYPE_CHECKING:
    from quire.ledger import ManifestChange, Replay


class BranchRecord:
    """What is on record of one branch."""

    def __init__(self, engine: EngineContext, id: str, branch: int) -> None:
        self.engine, self.id, self.branch = engine, id, branch

    async def cost(self) -> float:
        """Cost of the conversation so far, with its summaries, in US dollars; model calls without a price count 0."""
        return await self.engine.store.spending.get_cost(self.id)

    async def pin(self, number: int) -> None:
        """Pins a message: it stays in every request verbatim, whatever is compacted."""
        await self.engine.store.append(self.id, Pin(message=number), branch=self.branch)

    async def unpin(self, number: int) -> None:
        """Removes the pin of a message: compactions may cover it again."""
        await self.engine.store.append(self.id, Unpin(message=number), branch=self.branch)

    async def set_priority(self, number: int, priority: int | None) -> None:
        """Sets the priority of a message, 1 to 10; None resets it to the default, 5.

        The next compaction of the `hybrid` strategy archives messages of low priority first, and preserves those of
        high priority verbatim as far as their shares reach.
        """
        if priority is not None and not MIN_PRIORITY <= priority <= MAX_PRIORITY:
            raise InvalidRequest(f"A priority is a number from {MIN_PRIORITY} to {MAX_PRIORITY}, not {priority}.")
        entry = await self.engine.store.get_entry(self.id, number, branch=self.branch)
        if entry.kind != "message":
            raise InvalidRequest(f"#{number} is not a message, so it has no priority.")
        await self.engine.store.append(self.id, Priority(message=number, priority=priority), branch=self.branch)

    async def messages(self) -> list[Entry]:
        """All messages of the branch, archived or not, oldest first."""
        return await self.engine.store.read_range(self.id, branch=self.branch, kinds=["message"])

    async def manifest(self, reply: int) -> Manifest:
        """The manifest of the request that entry `reply` answered."""
        return await self.engine.store.get_manifest(self.id, reply, branch=self.branch)

    async def replay(self, reply: int) -> "Replay":
        """Rebuilds the request that entry `reply` answered, and compares it with its recorded digest."""
        from quire.ledger import replay

        manifest = await self.manifest(reply)
        for row in manifest.included:
            if row.span is not None:
                entries = await self.engine.store.read_range(
                    self.id, branch=self.branch, first=row.span.first, last=row.span.last
                )
                await self.engine.load_blobs(entries)
        return await replay(self.engine.store, manifest, load_blob=self.engine.blobs.get)

    async def diff(self, reply: int, other: int) -> "list[ManifestChange]":
        """The changes between the requests of two replies."""
        from quire.ledger import diff_manifests

        return diff_manifests(await self.manifest(reply), await self.manifest(other))

    async def why(self, item: int | str, *, reply: int) -> Decision:
        """The decision that included or excluded a message (by number) or an item (by name) in that request."""
        from quire.ledger import find_decision

        return find_decision(await self.manifest(reply), item)
