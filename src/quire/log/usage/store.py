"""`SqlUsageStore`: the methods of the store for the usage roll-up."""

from collections.abc import Sequence

from quire.log.conversations import list_conversation_ids
from quire.log.store_base import SqlStoreBase
from quire.log.usage import report, rollup
from quire.log.usage.report import USAGE_GROUPINGS, DocumentPair, RollupReport, UsageGrouping
from quire.log.usage.rollup import BATCH_ENTRIES, RecountResult


class SqlUsageStore(SqlStoreBase):
    """The methods of the store for the usage roll-up."""

    async def has_uncounted(self) -> bool:
        """Whether entries of the tenant are not in the roll-up yet."""
        return await self._read_inline(report.has_uncounted)

    async def count_usage(self, *, max_entries: int = BATCH_ENTRIES) -> int:
        """Counts the next entries that are not in the roll-up, in one transaction; returns the number of branches that
        it worked on, 0 if nothing is left."""
        return await self._write_bulk(rollup.count_usage, max_entries=max_entries)

    async def read_usage(
        self, *, since_day: int = 0, groupings: Sequence[UsageGrouping] = USAGE_GROUPINGS, limit: int = 20
    ) -> RollupReport:
        """Usage since a day (days since 1970, UTC), with the `limit` first rows of each list."""
        return await self._read(report.read_usage, since_day=since_day, groupings=groupings, limit=limit)

    async def read_document_pairs(self, *, limit: int = 100) -> list[DocumentPair]:
        """Documents that are used together, in the most conversations first."""
        return await self._read(report.read_document_pairs, limit=limit)

    async def recount_usage(self) -> RecountResult:
        """Compares the roll-up with a full count of the log, and corrects what differs."""
        while await self.count_usage():
            pass
        conversations = await self._read_bulk(list_conversation_ids)
        corrected = [await self._write_bulk(rollup.recount_conversation, each) for each in conversations]
        return RecountResult(len(conversations), sum(corrected), await self._write_bulk(rollup.recount_totals))
