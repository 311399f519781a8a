"""History match: recognise which conversation and branch a client's messages continue.

The path of the messages is looked up in an LRU cache of branch heads, then in the store. In a conversation named by
header, a list that does not start with the conversation is matched by overlap: clients drop the oldest messages, or put
a summary before the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import LRUCache
from pydantic_core import from_json

from quire.errors import BranchNotFound, ConversationNotFound
from quire.log import MAIN_BRANCH, Branch, BranchMatch, ConversationOrigin, Store
from quire.log.ids import new_id
from quire.log.worker_threads import run_sized
from quire.model import CHAIN_ROOT, Entry
from quire.server.gateway.codecs.base import ClientRequest
from quire.server.gateway.codecs.client_messages import ClientMessage, compute_client_paths
from quire.server.gateway.overlap import MAX_OVERLAP_MESSAGES, find_window_overlap

HEAD_CACHE_SIZE = 10_000
"""Maximum number of branch heads in the LRU cache."""
MAX_SESSION_CONVERSATIONS = 20
"""Maximum number of a session's conversations that are searched for the messages after a client's own summary."""
MAX_SESSION_BRANCHES = 4
"""Maximum number of branches of each that are searched, the most recently used ones."""
OVERLAP_MARGIN_MESSAGES = 16
"""Stored messages read beyond the length of the client's list, for clients that take back their latest messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMatch:
    """The position in the log that a client's request continues from."""

    conversation: str
    branch: int = MAIN_BRANCH
    head_seq: int = 0
    """Newest entry before the new messages."""
    head_path: bytes = CHAIN_ROOT
    """Path of the message that the new messages follow."""
    stored_start: int = 0
    """Index of the first message of the client's list that is stored; those before it are the client's own summary."""
    stored_end: int = 0
    """Index of the first message that is new."""
    entry_range: tuple[int, int] | None = None
    """First and last entry of the stored messages."""
    client_path: bytes | None = CHAIN_ROOT
    """The client's path after the stored messages; None if its list does not start with the conversation."""
    recorded_tokens: tuple[int, str] | None = None
    """Token count of the stored messages and the counter's name, if a manifest has them."""
    entries: tuple[Entry, ...] = ()
    """Entries of `entry_range`, if matching has read them."""
    creates_conversation: bool = False
    """Whether the conversation does not exist yet."""
    delta_only: bool = False
    """Whether the client sends only new messages, and Quire adds the history."""


@dataclass(frozen=True, slots=True)
class RequestedConversation:
    """Conversation and branch named by request headers."""

    conversation: str | None = None
    branch: int | None = None


class HeadScope(NamedTuple):
    """Where cached heads are shared: two sessions may have equal messages, and are different conversations."""

    tenant: str
    session: str | None


class HeadCache:
    """LRU cache of branch heads that this process answered last; the next turn needs no query.

    It holds only heads, and misses if the client adds a reply, which another node wrote. An entry may be stale: if the
    branch has grown meanwhile, recording the turn detects it and forks. It is cleared when a connection to the database
    breaks, because the database may then be in an earlier state.
    """

    def __init__(self) -> None:
        self._matches: LRUCache[tuple[HeadScope, bytes], HistoryMatch] = LRUCache(HEAD_CACHE_SIZE)

    def find(
        self,
        scope: HeadScope,
        messages: Sequence[ClientMessage],
        client_paths: Sequence[bytes],
        requested: RequestedConversation,
    ) -> HistoryMatch | None:
        """Finds the head after the last reply in `messages`."""
        for length in range(len(messages), 0, -1):
            if messages[length - 1].role == "assistant":
                match = self._matches.get((scope, client_paths[length - 1]))
                return match if match is not None and requested.conversation in (None, match.conversation) else None
        return None

    def clear(self) -> None:
        self._matches.clear()

    def update(self, scope: HeadScope, old_path: bytes | None, match: HistoryMatch) -> None:
        """Replaces the head at `old_path` with `match`."""
        if old_path is not None:
            self._matches.pop((scope, old_path), None)
        if match.client_path is not None:
            self._matches[scope, match.client_path] = match


async def match_history(
    store: Store,
    request: ClientRequest,
    requested: RequestedConversation,
    *,
    head_cache: HeadCache | None,
    scope: HeadScope,
    origin: ConversationOrigin | None = None,
) -> HistoryMatch:
    """Finds where the request continues, by cached head, by path, or by overlap; else creates a conversation.

    Conversations of the client's own session come before all others. A request that names the reply or the conversation
    that it continues has only new messages.
    """
    if request.previous_reply is not None:
        return await _match_reply(store, request.previous_reply)
    if request.conversation is not None:
        return await _match_conversation(store, request.conversation)
    known_paths = request.known_start.paths
    new_messages = request.messages[len(known_paths) :]
    client_paths = await run_sized(request.work_bytes, compute_client_paths, new_messages, known_paths=known_paths)
    cached = head_cache.find(scope, request.messages, client_paths, requested) if head_cache is not None else None
    if cached is not None:
        return cached
    session = origin.session if origin is not None else None
    found = await store.match_history(client_paths, conversation=requested.conversation, session=session)
    if found is not None and found.length and await _is_significant(store, found, request.messages, requested, session):
        return await _continue_branch(store, found, client_paths)
    if requested.conversation is None and origin is not None and session is not None:
        compacted = await _match_compacted_list(store, request, origin)
        if compacted is not None:
            return compacted
    if requested.conversation is None or found is None:
        return HistoryMatch(conversation=requested.conversation or new_id(), creates_conversation=True)
    branch = await _get_active_branch(store, found, requested)
    if branch.head_seq == 0:
        return HistoryMatch(conversation=branch.conversation, branch=branch.number, head_path=branch.head_path)
    return await _match_window(store, branch, request)


async def _match_reply(store: Store, reply_id: str) -> HistoryMatch:
    """Continues after a recorded reply; a second continuation forks. Raises `ResponseNotFound`."""
    recorded = await store.find_response(reply_id)
    branch = await store.get_branch(recorded.conversation, recorded.branch)
    if branch.head_seq != recorded.seq and not await _is_last_message(store, branch, recorded.seq):
        branch = await _get_or_create_fork(store, branch, recorded.seq)
    return _continue_with_new_messages(branch)


async def _match_conversation(store: Store, conversation: str) -> HistoryMatch:
    """Continues the branch of a conversation that was used last. Raises `ConversationNotFound`."""
    latest = await store.match_history((), conversation=conversation)
    if latest is None:
        raise ConversationNotFound(f"No conversation {conversation!r} exists; create it first.")
    return _continue_with_new_messages(latest.branch)


def _continue_with_new_messages(branch: Branch) -> HistoryMatch:
    return HistoryMatch(
        conversation=branch.conversation,
        branch=branch.number,
        head_seq=branch.head_seq,
        head_path=branch.head_path,
        client_path=None,
        delta_only=True,
    )


async def _is_significant(
    store: Store,
    found: BranchMatch,
    messages: Sequence[ClientMessage],
    requested: RequestedConversation,
    session: str | None,
) -> bool:
    """Whether the match identifies a position: it contains a reply, is in the client's own session, or is at the head
    of the requested conversation.

    First messages such as greetings repeat, so without a reply they identify no conversation among all others.
    """
    if any(each.role == "assistant" for each in messages[: found.length]):
        return True
    if requested.conversation is not None:
        return found.branch.head_seq - found.seq <= 1
    if session is None:
        return False
    return any(each.id == found.branch.conversation for each in await store.list_session(session))


async def _match_compacted_list(
    store: Store, request: ClientRequest, origin: ConversationOrigin
) -> HistoryMatch | None:
    """Finds a conversation of the same agent and session whose newest messages follow the client's own summary."""
    if origin.session is None or not any(each.role == "assistant" for each in request.messages):
        return None
    for record in await store.list_session(origin.session, limit=MAX_SESSION_CONVERSATIONS):
        if record.origin is None or (record.origin.agent, record.origin.purpose) != (origin.agent, origin.purpose):
            continue
        branches = sorted(await store.list_branches(record.id), key=lambda branch: -branch.updated_at)
        matches = [await _match_overlap(store, branch, request) for branch in branches[:MAX_SESSION_BRANCHES]]
        found = [match for match in matches if match is not None]
        # A branch that continues at its head is preferred: the others would fork.
        at_head = [match for match in found if match.continues_at_head]
        if found:
            return await _to_match(store, (at_head or found)[0])
    return None


async def _get_active_branch(store: Store, found: BranchMatch, requested: RequestedConversation) -> Branch:
    if requested.branch is not None:
        return await store.get_branch(found.branch.conversation, requested.branch)
    if found.length == 0:
        return found.branch
    active = await store.match_history((), conversation=found.branch.conversation)
    if active is None:
        raise BranchNotFound
    return active.branch


async def _continue_branch(store: Store, found: BranchMatch, client_paths: Sequence[bytes]) -> HistoryMatch:
    """Continues a branch that the client's list starts with, or forks it where later messages follow."""
    branch, path = found.branch, client_paths[found.length - 1]
    if not (
        branch.head_seq == found.seq or branch.head_path == path or await _is_last_message(store, branch, found.seq)
    ):
        branch = await _get_or_create_fork(store, branch, found.seq)
    return HistoryMatch(
        conversation=branch.conversation,
        branch=branch.number,
        head_seq=branch.head_seq,
        head_path=branch.head_path,
        stored_end=found.length,
        entry_range=(1, found.seq),
        client_path=path,
        recorded_tokens=_parse_recorded_tokens(found.manifest),
    )


async def _is_last_message(store: Store, branch: Branch, seq: int) -> bool:
    """Whether no message follows this one; a compaction or a pin may."""
    later = await store.read_tail(branch.conversation, 1, branch=branch.number, kinds=["message"])
    return bool(later) and later[-1].seq == seq


async def _get_or_create_fork(store: Store, branch: Branch, at: int) -> Branch:
    """Forks here, reusing an existing fork that has no entries yet."""
    fork_point = (branch.find_owner(at), at)
    for each in await store.list_branches(branch.conversation):
        if each.head_seq == at and each.lineage and each.lineage[-1] == fork_point:
            return each
    return await store.fork(branch.conversation, at=at, branch=branch.number)


async def _match_window(store: Store, branch: Branch, request: ClientRequest) -> HistoryMatch:
    """Matches a list that is the client's own window on the conversation, or that has only new messages."""
    overlap = await _match_overlap(store, branch, request)
    return _continue_with_new_messages(branch) if overlap is None else await _to_match(store, overlap)


@dataclass(frozen=True, slots=True)
class _BranchOverlap:
    """Messages `first` to `last` of the client's list are stored as the entries `run` of a branch."""

    branch: Branch
    first: int
    last: int
    run: list[Entry]
    continues_at_head: bool


async def _match_overlap(store: Store, branch: Branch, request: ClientRequest) -> _BranchOverlap | None:
    messages = request.messages
    if not any(each.role == "assistant" for each in messages):
        return None
    count = min(MAX_OVERLAP_MESSAGES, len(messages) + OVERLAP_MARGIN_MESSAGES)
    stored = await store.read_tail(branch.conversation, count, branch=branch.number, kinds=["message"])
    size = len(request.raw) + sum(len(entry.raw) for entry in stored)
    overlap = await run_sized(size, find_window_overlap, messages, stored)
    if overlap is None:
        return None
    run = stored[overlap.stored_last - (overlap.last - overlap.first) : overlap.stored_last + 1]
    at_head = overlap.stored_last == len(stored) - 1
    return _BranchOverlap(branch, overlap.first, overlap.last, run, at_head)


async def _to_match(store: Store, overlap: _BranchOverlap) -> HistoryMatch:
    branch, last = overlap.branch, overlap.run[-1]
    if not overlap.continues_at_head:
        branch = await _get_or_create_fork(store, branch, last.seq)
    return HistoryMatch(
        conversation=branch.conversation,
        branch=branch.number,
        head_seq=branch.head_seq,
        head_path=branch.head_path,
        stored_start=overlap.first,
        stored_end=overlap.last + 1,
        entry_range=(overlap.run[0].seq, last.seq),
        entries=tuple(overlap.run),
        client_path=None,
    )


def _parse_recorded_tokens(manifest: str | None) -> tuple[int, str] | None:
    """Reads the token count of the client's list up to a reply from the manifest of its request."""
    if manifest is None:
        return None
    record: dict[str, Any] = from_json(manifest)
    tokens = record.get("forwarded", {}).get("client_list_tokens")
    return (tokens, record["counter"]) if tokens is not None else None
