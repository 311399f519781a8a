"""What a shell completes: ids of conversations and names of agents. Completion never fails, it only has no answer."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from quire.errors import QuireError

OFFERED = 50


def conversation_ids(incomplete: str) -> list[tuple[str, str]]:
    """The conversations used last, with their titles."""
    try:
        return asyncio.run(_conversation_ids(incomplete))
    except (QuireError, OSError):
        return []


async def _conversation_ids(incomplete: str) -> list[tuple[str, str]]:
    from quire.cli.opening import Options, database_url, settings_from
    from quire.log import SqlStore

    url = database_url(settings_from(Options()).settings)
    if url.startswith("sqlite:///") and not await asyncio.to_thread(Path(url.removeprefix("sqlite:///")).exists):
        return []  # Opening it would make it.
    async with SqlStore.open(url) as store:
        used_last = await store.titled(*await store.conversations(limit=OFFERED))
    return [(each.id, each.title) for each in used_last if each.id.startswith(incomplete)]


def agent_names(incomplete: str) -> Iterator[str]:
    from quire.cli.agents import agent_files

    yield from (name for name in agent_files(os.environ) if name.startswith(incomplete))


def setting_names(incomplete: str) -> Iterator[tuple[str, str]]:
    from quire.settings import Settings

    for name, field in Settings.model_fields.items():
        if name.startswith(incomplete):
            yield name, field.description or ""
