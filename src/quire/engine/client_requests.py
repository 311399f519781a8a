"""The last request of a client that holds its own list of messages, as coding agents do."""

from quire.log.types import RecordedRequest
from quire.store import SqlStore


async def find_last_client_request(store: SqlStore, conversation: str, branch: int) -> RecordedRequest | None:
    """The newest request of the branch, if a client made it.

    The client makes the next one too, with its own model and instructions, so one that Quire would assemble describes
    nothing that is ever sent. None if Quire made the newest request itself, or there is none.
    """
    for seq, manifest in await store.list_manifests(conversation, branch=branch, limit=1):
        if manifest.forwarded is not None:
            return RecordedRequest(conversation, branch, seq, manifest)
    return None
