"""Recognition: find which conversation and branch a client's messages continue.

The gateway and the adapters decide it by the same rules. Messages are equal if their normal forms are. The path of the
messages is looked up in an LRU cache of branch heads, then in the store. In a conversation that the client names, a
list that does not start with the conversation is matched by overlap: clients drop the oldest messages, or put a summary
before the rest. A list without an overlap has only new messages."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from typing import Any, NamedTuple

from cachetools import LRUCache, TTLCache
from pydantic_core import from_json

from quire.concurrency.worker_threads import run_sized
from quire.engine.runtime import IDLE_CONVERSATION_SECONDS
from quire.errors import BranchNotFound, ConversationNotFound, EntryNotFound
from quire.log import MAIN_BRANCH, Branch, BranchMatch, ConversationOrigin
from quire.model import CHAIN_ROOT, Entry, iter_paths
from quire.model.ids import new_id
from quire.model.manifest import EDIT_REASONS, FITTED_FORMS
from quire.proxy.client_compactions import (
    SummaryReply,
    WrittenSummary,
    build_compaction,
    find_newest_branch,
    find_recorded,
    find_summary,
    find_summary_form,
    is_continued,
    list_scope,
    load_summary_replies,
    locate_covered,
)
from quire.proxy.client_origin import PROJECT_SESSION_PREFIX
from quire.rows.boilerplate import GEMINI_CLI, GEMINI_SUMMARY_ANSWER
from quire.store import SqlStore
from quire.wire.client_messages import ClientMessage, ParsedMessage, compute_client_paths, normalize_message
from quire.wire.codec import ClientRequest
from quire.wire.compaction_blocks import read_sealed, read_summary

HEAD_CACHE_SIZE = 10_000
"""Maximum number of branch heads in the LRU cache."""
MAX_UNANSWERED = 1_000
"""Maximum number of new conversations without an answer in the cache."""
MAX_TAIL_BYTES = 16 * 1024 * 1024
"""Maximum size of the messages that are cached with branch heads."""
MIN_TAIL_ENTRY_BYTES = 1_000
"""Bytes that a cached message counts as at least."""
MAX_SESSION_BRANCHES = 4
"""Maximum number of branches of each that are searched, the most recently used ones."""
MAX_OVERLAP_MESSAGES = 200
"""Maximum number of newest messages, of the client and of the log, that are compared to find an overlap."""
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
    """Index of the first message of the client's list that is stored. Those before it are the client's own summary."""
    stored_end: int = 0
    """Index of the first message that is new."""
    entry_range: tuple[int, int] | None = None
    """First and last entry of the stored messages."""
    client_path: bytes | None = CHAIN_ROOT
    """The client's path after the stored messages, or None if its list does not start with the conversation."""
    recorded_tokens: tuple[int, str] | None = None
    """Token count of the stored messages and the counter's name, if a manifest has them."""
    was_fitted: bool = False
    """Whether the request before this one was fitted."""
    entries: tuple[Entry, ...] = ()
    """Entries of `entry_range`, if matching has read them."""
    tail_digests: tuple[bytes, ...] = ()
    """In a cached head, digests of the match keys of `entries`, if the client's list begins after the conversation."""
    start_path: bytes | None = None
    """The client's path after the first message of the conversation, if the client's list begins after it."""
    read_branch: Branch | None = None
    """The branch, if matching has read it now."""
    compaction: int | None = None
    """Number of the client's own compaction with whose summary its list begins, if that is in the log."""
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
    """LRU cache of branch heads that this process answered last. The next turn needs no query.

    It holds only heads, and misses if the client adds a reply, which another node wrote. An entry may be stale: if the
    branch has grown meanwhile, recording the turn detects it and forks. It is cleared when a connection to the database
    breaks, because the database may then be in an earlier state.

    A list that begins after its conversation has no path. Its head is found by the conversation that the client names,
    with the messages of the list, if it repeats any.
    """

    def __init__(self) -> None:
        self._matches: LRUCache[tuple[HeadScope, bytes], HistoryMatch] = LRUCache(HEAD_CACHE_SIZE)
        self._tails: TTLCache[tuple[HeadScope, str], HistoryMatch] = TTLCache(
            MAX_TAIL_BYTES, IDLE_CONVERSATION_SECONDS, getsizeof=_measure_tail
        )
        self._unanswered: TTLCache[tuple[HeadScope, bytes], HistoryMatch] = TTLCache(
            MAX_UNANSWERED, IDLE_CONVERSATION_SECONDS
        )

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

    def find_tail(self, scope: HeadScope, conversation: str) -> HistoryMatch | None:
        """Finds the head of a conversation whose last list began after its first message."""
        return self._tails.get((scope, conversation))

    def clear(self) -> None:
        """Drops all heads."""
        self._unanswered.clear()
        self._matches.clear()
        self._tails.clear()

    def keep_unanswered(self, scope: HeadScope, first_path: bytes, match: HistoryMatch) -> None:
        """Keeps a new conversation whose first request got no answer, for the next attempt."""
        self._unanswered[scope, first_path] = match

    def take_unanswered(self, scope: HeadScope, first_path: bytes) -> HistoryMatch | None:
        """The conversation that an attempt with this first message began. Only one request continues it."""
        return self._unanswered.pop((scope, first_path), None)

    def update(self, scope: HeadScope, old_path: bytes | None, match: HistoryMatch) -> None:
        """Replaces the head at `old_path` with `match`."""
        if old_path is not None:
            self._matches.pop((scope, old_path), None)
        self._tails.pop((scope, match.conversation), None)
        if match.client_path is not None:
            self._matches[scope, match.client_path] = match
        elif _is_tail(match) and _measure_tail(match) <= MAX_TAIL_BYTES:
            self._tails[scope, match.conversation] = match


def _is_tail(match: HistoryMatch) -> bool:
    return match.start_path is not None and (bool(match.tail_digests) or match.delta_only)


def _measure_tail(match: HistoryMatch) -> int:
    return MIN_TAIL_ENTRY_BYTES + sum(MIN_TAIL_ENTRY_BYTES + len(entry.raw) for entry in match.entries)


def digest_keys(messages: Iterable[ClientMessage]) -> tuple[bytes, ...]:
    """Digests of the match keys of messages."""
    return tuple(sha256(each.match_key).digest() for each in messages)


async def match_request(
    store: SqlStore,
    request: ClientRequest,
    requested: RequestedConversation,
    *,
    head_cache: HeadCache | None,
    scope: HeadScope,
    origin: ConversationOrigin | None = None,
) -> HistoryMatch:
    """Finds where a request of the gateway continues.

    A request that names the reply or the conversation that it continues has only new messages. A second continuation of
    a reply forks. Raises `ResponseNotFound` and `ConversationNotFound`.
    """
    if request.previous_reply is not None:
        recorded = await store.find_response(request.previous_reply)
        branch = await store.get_branch(recorded.conversation, recorded.branch)
        if branch.head_seq != recorded.seq:
            newest = await store.read_tail(branch.conversation, 1, branch=branch.number, kinds=["message"])
            # A compaction or a pin may follow the reply, but no message.
            if not newest or newest[-1].seq != recorded.seq:
                branch = await _get_or_create_fork(store, branch, recorded.seq)
        return _continue_with_new_messages(branch)
    if request.conversation is not None:
        latest = await store.match_history((), conversation=request.conversation)
        if latest is None:
            raise ConversationNotFound(f"No conversation {request.conversation!r} exists; create it first.")
        return _continue_with_new_messages(latest.branch)
    if origin is not None and (origin.client, origin.purpose) == (GEMINI_CLI, "side") and not requested.conversation:
        # Its list is a part of the user's conversation, or all of it, and must not continue that.
        return HistoryMatch(conversation=new_id(), creates_conversation=True)
    known_paths = request.known_start.paths
    new_messages = request.messages[len(known_paths) :]
    paths = await run_sized(request.work_bytes, compute_client_paths, new_messages, known_paths=known_paths)
    cached = head_cache.find(scope, request.messages, paths, requested) if head_cache is not None else None
    if cached is not None:
        return cached
    if head_cache is not None and requested.conversation is not None:
        tail = head_cache.find_tail(scope, requested.conversation)
        # A list that begins with the conversation's first message may be another start of it.
        if tail is not None and paths[0] != tail.start_path:
            continued = await _continue_tail(store, request, requested, tail)
            if continued is not None:
                return continued
    match = await match_history(store, request.messages, paths, requested, size=len(request.raw), origin=origin)
    if match.creates_conversation and head_cache is not None and not requested.conversation and paths:
        return head_cache.take_unanswered(scope, paths[0]) or match
    if match.delta_only and head_cache is not None and store.masker is None:
        return replace(match, start_path=await _read_start_path(store, match.conversation, match.branch))
    return match


async def _continue_tail(
    store: SqlStore, request: ClientRequest, requested: RequestedConversation, tail: HistoryMatch
) -> HistoryMatch | None:
    """Continues a list that begins after its conversation, and repeats the last messages up to the head or none.

    This is what `match_history` would find. It needs only the branches, which say whether the head is still the same.
    """
    messages = request.messages
    replies = (index for index in range(len(messages) - 1, -1, -1) if messages[index].role == "assistant")
    end = next(replies, -1) + 1
    repeated = tail.tail_digests[len(tail.tail_digests) - end :]
    if tail.delta_only == bool(end) or len(repeated) != end or any(each.has_compaction for each in messages):
        return None
    if await run_sized(request.work_bytes, digest_keys, messages[:end]) != repeated:
        return None
    branches = await store.fetch_branches(tail.conversation)
    latest = max(branches, key=lambda each: (each.updated_at, each.number), default=None)
    number = requested.branch if requested.branch is not None else latest.number if latest is not None else None
    branch = next((each for each in branches if each.number == number), None)
    if branch is None or branch.number != tail.branch or branch.state.offloaded:
        return None
    if tail.delta_only:
        # A branch from the very beginning has another first message, which this may be.
        has_other_start = any(each.lineage and not each.fork_seq for each in branches)
        if has_other_start or branch.head_seq < tail.head_seq:
            return None
        return replace(_continue_with_new_messages(branch), start_path=tail.start_path)
    if branch.head_path != tail.head_path:
        return None
    entries = tail.entries[-end:]
    return replace(
        tail,
        head_seq=branch.head_seq,
        stored_end=end,
        entry_range=(entries[0].seq, entries[-1].seq),
        entries=entries,
        tail_digests=(),
        read_branch=branch,
    )


async def find_continued(
    store: SqlStore, request: ClientRequest, *, head_cache: HeadCache, scope: HeadScope
) -> HistoryMatch | None:
    """Finds what a list continues that is not recorded, such as one whose tokens are counted. Writes nothing."""
    paths = await run_sized(request.work_bytes, compute_client_paths, request.messages, known_paths=())
    cached = head_cache.find(scope, request.messages, paths, RequestedConversation())
    if cached is not None:
        return cached
    found = await store.match_history(paths, session=scope.session)
    if found is None or not any(each.role == "assistant" for each in request.messages[: found.length]):
        return None
    return await _continue_branch(store, found, request.messages, paths, may_fork=False)


async def match_history(
    store: SqlStore,
    messages: Sequence[ClientMessage],
    paths: Sequence[bytes],
    requested: RequestedConversation,
    *,
    size: int,
    origin: ConversationOrigin | None = None,
) -> HistoryMatch:
    """Finds where a list of messages continues, by path or by overlap; else it begins a conversation.

    `paths` are the client's paths after each message, and `size` is the size of all messages for `run_sized`.
    Conversations of the client's own session come before all others.
    """
    scope = origin or ConversationOrigin()
    found = await store.match_history(paths, conversation=requested.conversation, session=scope.session)
    stored = found.length if found is not None else 0
    has_reply = _has_reply(messages[:stored])
    is_named, is_main = requested.conversation is not None, scope.purpose != "side" and requested.conversation is None
    # The file of a session that Quire wrote lacks messages of the log, so that a path may end anywhere in its list.
    is_continuing = is_main and _has_reply(messages[stored:]) and await _continues_another(store, scope)
    if is_main and (not has_reply or is_continuing):
        recognized = await _recognize_compaction(store, messages, paths, scope, size=size)
        if recognized is not None:
            return recognized
    if not has_reply or messages[0].has_compaction:
        compacted = await _match_provider_compaction(store, messages, requested, scope.session, size=size)
        if compacted is not None:
            return compacted
    if is_main and not has_reply:
        compacted = await _recognize_unseen_compaction(store, messages, paths, scope, size=size)
        if compacted is not None:
            return compacted
    if is_named:
        return await _match_named(store, messages, paths, requested, found, size=size)
    if not is_continuing and found is not None and (has_reply or await _is_own(store, found, scope)):
        return await _continue_branch(store, found, messages, paths)
    overlap = await _find_in_session(store, messages, scope, size=size)
    if overlap is not None:
        return await _to_match(store, overlap)
    if has_reply and found is not None:
        return await _continue_branch(store, found, messages, paths)
    return HistoryMatch(conversation=new_id(), creates_conversation=True)


async def _match_named(
    store: SqlStore,
    messages: Sequence[ClientMessage],
    paths: Sequence[bytes],
    requested: RequestedConversation,
    found: BranchMatch | None,
    *,
    size: int,
) -> HistoryMatch:
    """Finds where a list continues the conversation that the client names. `found` is the branch with its start."""
    if found is None:
        return HistoryMatch(conversation=requested.conversation or new_id(), creates_conversation=True)
    branch, is_near_head = found.branch, found.branch.head_seq - found.seq <= 1
    if found.length and (is_near_head or _has_reply(messages[: found.length])):
        return await _continue_branch(store, found, messages, paths)
    if requested.branch is not None:
        branch = await store.get_branch(branch.conversation, requested.branch)
    elif found.length:
        active = await store.match_history((), conversation=branch.conversation)
        if active is None:
            raise BranchNotFound
        branch = active.branch
    if branch.head_seq == 0:
        return HistoryMatch(conversation=branch.conversation, branch=branch.number, head_path=branch.head_path)
    overlap = await _match_overlap(store, branch, messages, size=size)
    return _continue_with_new_messages(branch) if overlap is None else await _to_match(store, overlap)


def _has_reply(messages: Iterable[ClientMessage]) -> bool:
    return any(each.role == "assistant" for each in messages)


async def _continues_another(store: SqlStore, origin: ConversationOrigin) -> bool:
    """Whether Quire wrote the client's session, which has no conversation of its own."""
    return origin.session is not None and any(is_continued(each, origin) for each in await list_scope(store, origin))


def _continue_with_new_messages(branch: Branch) -> HistoryMatch:
    return HistoryMatch(
        conversation=branch.conversation,
        branch=branch.number,
        head_seq=branch.head_seq,
        head_path=branch.head_path,
        client_path=None,
        delta_only=True,
        read_branch=branch,
    )


async def _is_own(store: SqlStore, found: BranchMatch, origin: ConversationOrigin) -> bool:
    """Whether a match without a reply is of the same agent in the client's session.

    First messages such as greetings repeat, so that they identify no conversation among all others. Two sub-agents of a
    session may have the same task.
    """
    if origin.session is None or origin.session.startswith(PROJECT_SESSION_PREFIX) or not found.length:
        return False
    record = await store.get_conversation(found.branch.conversation)
    return record.origin is not None and (record.origin.session, record.origin.agent) == (origin.session, origin.agent)


async def _recognize_compaction(
    store: SqlStore,
    messages: Sequence[ClientMessage],
    paths: Sequence[bytes],
    origin: ConversationOrigin,
    *,
    size: int,
) -> HistoryMatch | None:
    """Finds the conversation that a list continues if it begins with a summary, and records the compaction there."""
    if origin.session is None and await run_sized(size, find_summary_form, messages) is None:
        return None
    replies = await load_summary_replies(store, origin)
    masked = messages
    if (masker := store.masker) is not None and replies:
        masked = await run_sized(size, lambda: [ParsedMessage(masker.mask_message(each.message)) for each in messages])
    found = await run_sized(size, find_summary, masked, replies) if replies else None
    located = await locate_covered(store, found.reply, origin) if found is not None else None
    if found is None or located is None:
        return None
    branch, last = located
    # Gemini CLI answers every summary itself with the same words, which are no stored message.
    following = messages[found.place + 1 :]
    start = found.place + (2 if following and following[0].message.text == GEMINI_SUMMARY_ANSWER else 1)
    overlap = await _match_overlap(store, branch, messages[start:], size=size)
    recorded = await find_recorded(store, branch, found.reply)
    if overlap is None and not found.is_certain and recorded is None:
        # A user who rewinds to the first message may quote a reply in it. A hook may have announced the compaction.
        return None
    return await _continue_after_summary(store, branch, found.reply, overlap, paths, start=start, last=last)


async def _recognize_unseen_compaction(
    store: SqlStore,
    messages: Sequence[ClientMessage],
    paths: Sequence[bytes],
    origin: ConversationOrigin,
    *,
    size: int,
) -> HistoryMatch | None:
    """Finds the conversation of the session that a summary continues whose request did not pass through the gateway,
    and records the compaction there, unless an import has."""
    if origin.session is None or origin.session.startswith(PROJECT_SESSION_PREFIX):
        return None
    place = await run_sized(size, find_summary_form, messages)
    if place is None:
        return None
    summary = messages[place].message
    written = WrittenSummary(read_summary(summary if store.masker is None else store.masker.mask_message(summary)))
    overlap = await _find_in_session(store, messages[place + 1 :], origin, size=size)
    branch = overlap.branch if overlap is not None else await find_newest_branch(store, origin)
    if branch is None or not branch.head_seq:
        return None
    last = branch.head_seq
    return await _continue_after_summary(store, branch, written, overlap, paths, start=place + 1, last=last)


async def _continue_after_summary(
    store: SqlStore,
    branch: Branch,
    summary: SummaryReply | WrittenSummary,
    overlap: "_BranchOverlap | None",
    paths: Sequence[bytes],
    *,
    start: int,
    last: int,
) -> HistoryMatch:
    """Continues a branch after a summary of its entries up to `last`, which is before message `start` of the list,
    and records the compaction unless the log has it. `overlap` is of the messages from there on."""
    recorded, end = await find_recorded(store, branch, summary), start
    run = overlap.run if overlap is not None else []
    newest = await store.read_tail(branch.conversation, 1, branch=branch.number, kinds=["message"])
    if overlap is not None:
        start, end = start + overlap.first, end + overlap.last + 1
        last = min(last, run[0].seq - 1)
    elif newest:
        last = newest[-1].seq
    at_head = overlap is not None and overlap.continues_at_head
    last_reply = newest[-1].seq if newest and newest[-1].role == "assistant" else 0
    if not at_head and recorded is not None and recorded.seq < last_reply:
        # The user went back to the compaction, and what followed it stays on its branch.
        branch = await _get_or_create_fork(store, branch, max(recorded.seq, run[-1].seq if run else 0))
    elif not at_head and overlap is not None:
        branch = await _get_or_create_fork(store, branch, run[-1].seq)
        recorded = await find_recorded(store, branch, summary)
    if recorded is None:
        compaction = await build_compaction(store, branch, last, summary)
        [recorded] = await store.append(branch.conversation, compaction, branch=branch.number)
    return HistoryMatch(
        conversation=branch.conversation,
        branch=branch.number,
        head_seq=max(branch.head_seq, recorded.seq),
        head_path=branch.head_path,
        stored_start=start,
        stored_end=end,
        entry_range=(run[0].seq, run[-1].seq) if run else None,
        entries=tuple(run),
        client_path=paths[end - 1],
        compaction=recorded.seq,
    )


async def _match_provider_compaction(
    store: SqlStore,
    messages: Sequence[ClientMessage],
    requested: RequestedConversation,
    session: str | None,
    *,
    size: int,
) -> HistoryMatch | None:
    """Finds the branch whose reply has the compaction in this list.

    The list begins in the middle of the branch: with the compaction, or with the user's messages that a provider keeps
    before it.
    """
    start = max((index for index, each in enumerate(messages) if each.has_compaction), default=None)
    if start is None:
        return None
    paths = await run_sized(size, compute_client_paths, messages[start:])
    found = await store.match_history(paths, conversation=requested.conversation, session=session)
    overlap = await _match_overlap(store, found.branch, messages, size=size) if found and found.length else None
    if overlap is None:
        return None
    match = await _to_match(store, overlap)
    sealed = read_sealed(messages[start].message)
    reply = next((entry for entry in overlap.run if sealed and read_sealed(entry.message) == sealed), None)
    if reply is None:
        return match
    # The entry of the compaction follows the reply with the item, which an undo replaces in the list.
    following = await store.read_range(
        match.conversation, branch=match.branch, first=reply.seq + 1, kinds=["compaction"], limit=1
    )
    return replace(match, compaction=following[0].seq) if following else match


async def _find_in_session(
    store: SqlStore, messages: Sequence[ClientMessage], origin: ConversationOrigin, *, size: int
) -> "_BranchOverlap | None":
    """Finds a conversation of the same agent and session whose newest messages the list has."""
    if origin.session is None or not _has_reply(messages):
        return None
    for record in await list_scope(store, origin):
        if not is_continued(record, origin) and (record.origin is None or record.origin.purpose != origin.purpose):
            continue
        branches = sorted(await store.list_branches(record.id), key=lambda branch: -branch.updated_at)
        matches = [
            await _match_overlap(store, branch, messages, size=size) for branch in branches[:MAX_SESSION_BRANCHES]
        ]
        found = [match for match in matches if match is not None]
        # A branch that continues at its head is preferred: the others would fork.
        at_head = [match for match in found if match.continues_at_head]
        if found:
            return (at_head or found)[0]
    return None


async def _continue_branch(
    store: SqlStore,
    found: BranchMatch,
    messages: Sequence[ClientMessage],
    paths: Sequence[bytes],
    *,
    may_fork: bool = True,
) -> HistoryMatch:
    """Continues a branch that the client's list starts with, or forks it where other messages follow.

    The stored paths cover the messages as they were recorded. Messages after the one that was found may still
    equal the client's, in the normal form.
    """
    branch, stored_end, seq = found.branch, found.length, found.seq
    if branch.head_seq != seq and branch.head_path != paths[stored_end - 1]:
        later = await store.read_range(
            branch.conversation, branch=branch.number, first=seq + 1, kinds=["message"], limit=MAX_OVERLAP_MESSAGES
        )

        def count_equal() -> int:
            following = messages[found.length : found.length + len(later)]
            pairs = zip(_make_sent_keys(store, following), _make_stored_keys(store, later), strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        equal = await run_sized(sum(len(entry.raw) for entry in later), count_equal)
        if equal:
            stored_end, seq = stored_end + equal, later[equal - 1].seq
        # A compaction or a pin may follow the last message.
        if may_fork and later and later[-1].seq != seq:
            branch = await _get_or_create_fork(store, branch, seq)
    recorded_tokens: tuple[int, str] | None = None
    manifest: dict[str, Any] = from_json(found.manifest) if found.manifest is not None else {}
    forwarded: dict[str, Any] = manifest.get("forwarded", {})
    compaction: int | None = forwarded.get("compaction")
    if stored_end == found.length:
        # The manifest of a request has the token count of the client's list up to the reply.
        tokens = forwarded.get("client_list_tokens")
        recorded_tokens = (tokens, manifest["counter"]) if tokens is not None else None
    return HistoryMatch(
        conversation=branch.conversation,
        branch=branch.number,
        head_seq=branch.head_seq,
        head_path=branch.head_path,
        stored_end=stored_end,
        stored_start=forwarded.get("unrecorded_messages") or 0 if compaction is not None else 0,
        entry_range=(_find_list_start(manifest, compaction) if compaction is not None else 1, seq),
        compaction=compaction,
        client_path=paths[stored_end - 1],
        recorded_tokens=recorded_tokens,
        was_fitted=forwarded.get("form") in FITTED_FORMS,
    )


def _find_list_start(manifest: Mapping[str, Any], compaction: int) -> int:
    """Number of the first stored message in the client's list: edits add others to what is sent."""
    rows = (row for row in manifest["decisions"] if row["kind"] == "message" and row["included"])
    spans = (row.get("span") for row in rows if row["reason"] not in EDIT_REASONS)
    return min((span["first"] for span in spans if span is not None), default=compaction + 1)


async def _get_or_create_fork(store: SqlStore, branch: Branch, at: int) -> Branch:
    """Forks here, reusing an existing fork that has no entries yet."""
    fork_point = (branch.find_owner(at), at)
    for each in await store.list_branches(branch.conversation):
        if each.head_seq == at and each.lineage and each.lineage[-1] == fork_point:
            return each
    return await store.fork(branch.conversation, at=at, branch=branch.number)


class Overlap(NamedTuple):
    """Messages `first` to `last` of the client's list equal the stored messages that end at `stored_last`."""

    first: int
    last: int
    stored_last: int


@dataclass(frozen=True, slots=True)
class _BranchOverlap:
    """Messages `first` to `last` of the client's list are stored as the entries `run` of a branch."""

    branch: Branch
    first: int
    last: int
    run: list[Entry]
    continues_at_head: bool


async def _match_overlap(
    store: SqlStore, branch: Branch, messages: Sequence[ClientMessage], *, size: int
) -> _BranchOverlap | None:
    """Compares the client's newest messages with the newest of a branch."""
    if not any(each.role == "assistant" for each in messages):
        return None
    newest = messages[-MAX_OVERLAP_MESSAGES:]
    count = min(MAX_OVERLAP_MESSAGES, len(messages) + OVERLAP_MARGIN_MESSAGES)
    stored = await store.read_tail(branch.conversation, count, branch=branch.number, kinds=["message"])

    def compare() -> Overlap | None:
        return find_overlap(
            _make_sent_keys(store, newest),
            _make_stored_keys(store, stored),
            is_reply=[each.role == "assistant" for each in newest],
        )

    overlap = await run_sized(size + sum(len(entry.raw) for entry in stored), compare)
    if overlap is None:
        return None
    run = stored[overlap.stored_last - (overlap.last - overlap.first) : overlap.stored_last + 1]
    unseen, at_head = len(messages) - len(newest), overlap.stored_last == len(stored) - 1
    return _BranchOverlap(branch, overlap.first + unseen, overlap.last + unseen, run, at_head)


def _make_sent_keys(store: SqlStore, messages: Sequence[ClientMessage]) -> list[bytes]:
    masker = store.masker
    if masker is None:
        return [each.match_key for each in messages]
    return [masker.mask_message(each.normalized).canonical_json().encode() for each in messages]


def _make_stored_keys(store: SqlStore, entries: Sequence[Entry]) -> list[bytes]:
    """Match keys of stored messages. Where secrets are masked before storage, both sides are compared masked: a mask
    of the normal form need not be the normal form of the mask."""
    messages, masker = [normalize_message(entry.message) for entry in entries], store.masker
    if masker is not None:
        messages = list(map(masker.mask_message, messages))
    return [each.canonical_json().encode() for each in messages]


def find_overlap(sent: Sequence[bytes], stored: Sequence[bytes], *, is_reply: Sequence[bool]) -> Overlap | None:
    """Finds a run from the client's first message to the log's head, else the run that ends last in the client's list.

    A run to the head is preferred because it continues the conversation: repeated identical turns would otherwise match
    an earlier place and fork. `sent` and `stored` are match keys, oldest first; `is_reply` marks assistant messages in
    `sent`. A run counts only if it contains a reply, because users often repeat their own words. The work is the
    product of the two lengths: digests are compared, and each run extends the one that ends a message earlier.
    """
    sent_digests, stored_digests = ([sha256(key).digest() for key in keys] for keys in (sent, stored))
    head, last_reply = len(stored) - 1, -1
    to_head: Overlap | None = None
    latest: Overlap | None = None
    # One row of the table of runs: runs[n + 1] is the length of the run that ends at `last` and at stored message n.
    runs = [0] * (len(stored) + 1)
    for last, digest in enumerate(sent_digests):
        last_reply = last if is_reply[last] else last_reply
        found: Overlap | None = None
        for stored_last in range(head, -1, -1):
            run = runs[stored_last + 1] = runs[stored_last] + 1 if digest == stored_digests[stored_last] else 0
            if found is None and last_reply > last - run:
                found = Overlap(last - run + 1, last, stored_last)
        if found is not None:
            latest = found
            to_head = found if (found.first, found.stored_last) == (0, head) else to_head
    return to_head or latest


async def _to_match(store: SqlStore, overlap: _BranchOverlap) -> HistoryMatch:
    branch, last = overlap.branch, overlap.run[-1]
    reply = next(entry for entry in reversed(overlap.run) if entry.role == "assistant")
    was_fitted = False
    with suppress(EntryNotFound):
        manifest = await store.get_manifest(branch.conversation, reply.seq, branch=branch.number)
        was_fitted = manifest.forwarded is not None and manifest.forwarded.form in FITTED_FORMS
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
        start_path=await _read_start_path(store, branch.conversation, branch.number),
        was_fitted=was_fitted,
    )


async def _read_start_path(store: SqlStore, conversation: str, branch: int) -> bytes | None:
    """The client's path after the first message of a conversation, or None if that was purged."""
    start = await store.read_range(conversation, branch=branch, limit=1, kinds=["message"])
    if not start or start[0].purged_at is not None:
        return None
    return next(iter_paths(_make_stored_keys(store, start)))
