"""Waits for the database when a server or a worker starts, so that the order of their start does not matter."""

import asyncio
from collections.abc import Callable

from quire.errors import StoreUnavailable

DATABASE_WAIT_SECONDS = 60.0
"""Maximum wait for a PostgreSQL that is not there yet, or does not accept writes yet."""
_MAX_PAUSE_SECONDS = 5.0


async def wait_for_database(
    url: str,
    *,
    report: Callable[[StoreUnavailable, float], None],
    max_seconds: float = DATABASE_WAIT_SECONDS,
) -> None:
    """Returns once the database accepts writes; calls `report` with the error and the pause before each retry.

    Raises the last error after `max_seconds`, and all others at once, such as an outdated schema.
    """
    from quire.log import SqlStore
    from quire.log.database_url import is_postgres

    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + (max_seconds if is_postgres(url) else 0.0), 0.25
    while True:
        try:
            async with SqlStore.open(url) as store:
                return await store.check()
        except StoreUnavailable as error:
            if loop.time() + pause > deadline:
                raise
            report(error, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
