"""Reading sessions again that an earlier version imported: the copy of the database before, and what changed."""

import asyncio
import shutil
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from quire.cli.output import pluralize, print_note
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from quire.store import SqlStore
    from quire.store.reimport import Reread

BACKUP_DOCS = "docs/deployment.md#backup-and-restore"


class ReimportNotice:
    """Copies the database once before anything in it is read again, and says afterwards what changed."""

    def __init__(self, store: "SqlStore", database_url: str) -> None:
        self._store = store
        self._file = Path(database_url.removeprefix("sqlite:///")) if database_url.startswith("sqlite:///") else None
        self._costs: dict[str, int] | None = None
        """Cost of each conversation before, in nano-dollars."""

    @property
    def can_copy(self) -> bool:
        return self._file is not None

    async def prepare(self) -> None:
        from quire.usage.insights import count_usage

        if self._costs is not None:
            return
        if self._file is not None:
            copy = await asyncio.to_thread(copy_database, self._file)
            print_note(f"Copied the database to {copy}, because sessions in it are read again. Delete the copy later.")
        # What was never counted would look as if it had cost nothing.
        await count_usage(self._store.usage)
        self._costs = await self._read_costs()

    async def _read_costs(self) -> dict[str, int]:
        return {each.conversation: each.cost_nanos for each in await self._store.usage.list_conversation_costs()}

    async def print_changes(
        self, reread: "Mapping[str, Reread]", merged: Mapping[str, str], *, dry_run: bool = False
    ) -> None:
        """Says once what reading sessions again has changed, or would change."""
        for copy, recorded in merged.items():
            verb = "Would delete" if dry_run else "Deleted"
            print_note(f"{verb} {copy}: the gateway recorded all of the same session in {recorded}.")
        if not reread:
            return
        from quire.usage.insights import count_usage

        await count_usage(self._store.usage)
        before, after = self._costs or {}, await self._read_costs()
        pieces = sum(each.branches < each.branches_before for each in reread.values())
        costs = [sum(each.get(name, 0) for name in reread) / 1e9 for each in (before, after)]
        lost = sum(each.lost_edits for each in reread.values())
        cost = f"cost ${costs[0]:,.2f}" + (f" -> ${costs[1]:,.2f}" if costs[0] != costs[1] else " as before")
        facts = [
            f"{pieces:,} had been in more pieces" if pieces else "",
            cost,
            f"{pluralize(lost, 'edit')} had no place any more" if lost else "",
        ]
        read_again = "session was read again" if len(reread) == 1 else "sessions were read again"
        print_note(f"{len(reread):,} {read_again}: {', '.join(filter(None, facts))}.")


def print_unmerged(unmerged: Mapping[str, str]) -> None:
    """Names the conversations of a recorded session that are not merged with it, and why."""
    for copy, recorded in unmerged.items():
        print_note(
            f"{copy} stays, though the gateway recorded the same session in {recorded}: it has an edit, a "
            "branch, a tag, or messages from before the gateway recorded the session."
        )


def copy_database(path: Path) -> Path:
    """Copies a SQLite database to one file in its folder, while others may write to it. Returns the file."""
    size = sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.exists())
    if shutil.disk_usage(path.parent).free < size:
        raise InvalidRequest(
            f"Sessions are to be read again, and the database is copied before. The copy needs {size / 1e6:,.0f} MB in "
            f"{path.parent}; free them, and run the command again."
        )
    target = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%d-%H%M%S}.copy")
    target.touch(mode=0o600)
    source, copy = sqlite3.connect(path), sqlite3.connect(target)
    try:
        source.backup(copy)
    except BaseException:
        target.unlink()
        raise
    finally:
        copy.close()
        source.close()
    return target
