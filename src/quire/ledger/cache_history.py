"""Walks the requests of a branch, and finds where the provider's prompt cache broke."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from quire.concurrency.worker_threads import measure_entries, run_sized
from quire.ledger.cache_breaks import CacheBreak, CachedRequest, find_cache_break
from quire.ledger.replay import check_sent_body
from quire.log.types import MAIN_BRANCH
from quire.model import Entry, Manifest, Usage
from quire.model.entry_bodies import ContextEpoch
from quire.model.json_values import get_object
from quire.model.manifest import FITTED_FORMS
from quire.store import SqlStore
from quire.view.call_prices import Cost
from quire.wire.codec import UnreadableBody, parse_body
from quire.wire.codecs import CODECS
from quire.wire.prompt_prefix import repeats_last_item

MAX_WALKED_REQUESTS = 500
"""The newest requests of a branch are compared, up to this number."""
MAX_WALKED_ENTRIES = 4_000
"""Newest entries in which the replies to these requests are searched."""
MAX_SEARCHED_CONVERSATIONS = 3
"""Other conversations of a client's session in which the request before a new list is searched, newest first."""
BODY_BATCH_SIZE = 16
"""Bodies that are in memory at a time. Long sessions have requests of a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """Where the cache broke in the newest requests of a branch, and what is not known about them."""

    requests: int
    """Requests that were compared, each with the one before."""
    breaks: tuple[CacheBreak, ...]
    without_body: int
    """Requests whose body is not stored: what changed in them is not known."""
    without_usage: int
    """Requests whose provider reported no usage: tokens are estimated, and only a changed prompt is found."""

    @property
    def unknown(self) -> str | None:
        """What is not known, as a sentence, or None if everything is."""
        if not self.requests:
            return "No request with a usage is recorded, so nothing is known about the cache."
        parts = [
            f"{self.without_body} of {self.requests} requests are stored without their bodies (imported, sent by "
            "another program, or purged): of these, the model, the time and the tokens are compared"
            if self.without_body
            else "",
            f"{self.without_usage} of {self.requests} replies have no usage of the provider: their tokens are estimated"
            if self.without_usage
            else "",
        ]
        return "; ".join(filter(None, parts)) + "." if any(parts) else None


async def load_cache_report(
    store: SqlStore,
    conversation: str,
    *,
    branch: int = MAIN_BRANCH,
    reply: int | None = None,
    compute_cost: Callable[[Usage, str, datetime], Cost],
) -> CacheReport:
    """Compares the newest requests of a branch, or with `reply` only the request of that reply with the one before."""
    last = reply if reply is not None else (await store.get_branch(conversation, branch)).head_seq
    first = max(1, last - MAX_WALKED_ENTRIES + 1)
    read = partial(store.read_range, conversation, branch=branch, first=first, last=last)
    entries = [*await read(kinds=["message"], roles=["assistant"]), *await read(kinds=["epoch", "compaction"])]
    limit = MAX_WALKED_REQUESTS if reply is None else 2
    manifests = dict(await store.list_manifests(conversation, branch=branch, limit=limit, last=last))
    requests = (await run_sized(measure_entries(entries), _list_requests, entries, manifests))[-limit:]
    branches = {entry.seq: entry.branch for entry in entries}
    if reply is not None and (not requests or requests[-1].reply != reply):
        requests = []
    breaks: list[CacheBreak] = []
    without_body = 0
    before: CachedRequest | None = None
    for start in range(0, len(requests), BODY_BATCH_SIZE):
        batch = requests[start : start + BODY_BATCH_SIZE]
        seqs = [each.reply for each in batch if each.reply in manifests]
        bodies = await store.get_request_bodies(conversation, seqs, branch=branch) if seqs else {}

        # A client that changes an early message of its list begins a branch, or even a conversation.
        others: dict[int, CachedRequest] = {}
        for index, each in enumerate(batch, start):
            is_first = index == 0 or branches[requests[index - 1].reply] != branches[each.reply]
            if is_first and each.reply in bodies:
                other = await _find_last_request(store, conversation, branches[each.reply], each.created_at)
                others |= {each.reply: other} if other is not None else {}

        def compare(
            batch: Sequence[CachedRequest] = batch,
            bodies: dict[int, bytes] = bodies,
            others: dict[int, CachedRequest] = others,
            before: CachedRequest | None = before,
        ) -> tuple[list[CacheBreak], list[CachedRequest]]:
            loaded = [_add_body(each, bodies.get(each.reply), manifests.get(each.reply)) for each in batch]
            found: list[CacheBreak | None] = []
            for old, new in zip([before, *loaded], loaded, strict=False):
                other = others.get(new.reply)
                old = other if other is not None and _is_continued(other, new) else old
                found.append(find_cache_break(old, new, compute_cost) if old is not None else None)
            return [each for each in found if each is not None], loaded

        found, loaded = await run_sized(sum(map(len, bodies.values())), compare)
        breaks += found
        without_body += sum(each.fields is None for each in loaded)
        before = loaded[-1]
    return CacheReport(
        requests=len(requests),
        breaks=tuple(breaks),
        without_body=without_body,
        without_usage=sum(each.usage is None or bool(each.usage.estimated) for each in requests),
    )


async def _find_last_request(
    store: SqlStore, conversation: str, branch: int, before_micros: int
) -> CachedRequest | None:
    """The last request of the client's session before a time, outside of this branch."""
    record = await store.get_conversation(conversation)
    session = record.origin.session if record.origin is not None else None
    records = await store.list_session(session) if session is not None else []
    # Side calls have no tools, and so may a chat that continues; sub-agents and titles have lists of their own.
    purposes = {None, "side"}
    others = [each for each in records if each.id != conversation and each.origin and each.origin.purpose in purposes]
    candidates = [
        each
        for owner in (record, *others[:MAX_SEARCHED_CONVERSATIONS])
        for each in await store.list_branches(owner.id)
        if each.updated_at < before_micros and (owner.id, each.number) != (conversation, branch)
    ]
    last = max(candidates, key=lambda each: each.updated_at, default=None)
    manifests = await store.list_manifests(last.conversation, branch=last.number, limit=1) if last is not None else []
    if last is None or not manifests:
        return None
    seq, manifest = manifests[0]
    entries = await store.get_entries(last.conversation, [seq], branch=last.number)
    bodies = await store.get_request_bodies(last.conversation, [seq], branch=last.number)
    body = bodies.get(seq)

    def build() -> list[CachedRequest]:
        return [_add_body(each, body, manifest) for each in _list_requests(entries, {seq: manifest})]

    requests = await run_sized(measure_entries(entries) + len(body or b""), build)
    if not requests:
        return None
    return replace(requests[0], conversation=last.conversation if last.conversation != conversation else None)


def _is_continued(other: CachedRequest, request: CachedRequest) -> bool:
    """Whether a request continues another one that is not before it on its branch, and is no return to the past."""
    if other.codec is None or other.codec is not request.codec or other.fields is None or request.fields is None:
        return False
    is_compacted = request.summary is not None and request.summary != other.summary
    return is_compacted or repeats_last_item(other.codec, other.fields, request.fields)


def _list_requests(entries: Sequence[Entry], manifests: dict[int, Manifest]) -> list[CachedRequest]:
    """The requests of the entries, oldest first, without their bodies. An imported reply has a usage at most."""
    requests: list[CachedRequest] = []
    epoch = compaction = None
    for entry in sorted(entries, key=lambda each: each.seq):
        if entry.kind == "compaction":
            compaction = entry.seq
        elif entry.kind != "message":
            body = entry.body
            epoch = entry.seq if isinstance(body, ContextEpoch) and body.changes_in_place else epoch
        elif entry.role == "assistant":
            usage, manifest = entry.metadata.usage, manifests.get(entry.seq)
            if manifest is None and usage is None:
                continue
            written = get_object((usage.provider_fields if usage is not None else None) or {}, "cache_creation")
            request = CachedRequest(
                reply=entry.seq,
                created_at=entry.created_at,
                model=(usage.model if usage is not None else None) or "",
                cache_seconds=3_600 if written.get("ephemeral_1h_input_tokens") else 300,
                usage=usage,
                summary=compaction,
            )
            requests.append(request if manifest is None else _add_manifest(request, manifest, epoch))
    return requests


def _add_manifest(request: CachedRequest, manifest: Manifest, epoch: int | None) -> CachedRequest:
    summary = next((row.span for row in manifest.included if row.kind == "summary"), None)
    forwarded = manifest.forwarded
    is_fitted = forwarded is not None and forwarded.form in FITTED_FORMS
    replaced = (forwarded.unrecorded_messages, forwarded.compaction) if forwarded is not None else (None, None)
    return replace(
        request,
        model=manifest.policy.model,
        codec=CODECS[manifest.policy.wire_format],
        total_tokens=manifest.total_tokens,
        summary=(summary, *replaced) if summary is not None or any(replaced) else None,
        edits=(epoch, is_fitted) if epoch is not None or is_fitted else None,
        provider_edits=forwarded.provider_edits if forwarded is not None else (),
    )


def _add_body(request: CachedRequest, body: bytes | None, manifest: Manifest | None) -> CachedRequest:
    if body is None or manifest is None or manifest.forwarded is None or request.codec is None:
        return request
    check_sent_body(body, manifest.forwarded, request.reply)
    try:
        fields = parse_body(body)
    except UnreadableBody:
        return request
    return replace(request, fields=fields, cache_seconds=request.codec.get_cache_seconds(body))
