"""Rendering of a request with the client's own list of messages, as a replay from the log would render it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.concurrency.worker_threads import run_sized
from quire.model import CHAIN_ROOT, Message
from quire.model.json_values import filter_objects
from quire.model.secrets import MASK_MARK
from quire.proxy.engine_variants import RecognizedRequest, render_client_message
from quire.proxy.rendered_history import RenderedHistory, list_call_ids
from quire.store import SqlStore
from quire.view.batches import group_batches, repair_tool_calls
from quire.view.layout import RenderedRequest, RequestContents, lay_out
from quire.view.rendered import RenderedMessage
from quire.wire import WireMessage
from quire.wire.client_messages import EquivalentStart, compute_client_paths

_EMPTY_MESSAGE = Message.user("")
_StoredMessages = Sequence[tuple[RenderedMessage, bytes]]
"""Rendered messages, each with the log's path after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRendering:
    """A request rendered from the log, and whether it equals what the client sent."""

    rendered_request: RenderedRequest
    replayable: bool
    history: RenderedHistory | None = None
    """The stored messages, if they are all of the branch: the next turn extends it."""


async def render_from_log(recognized: RecognizedRequest, store: SqlStore) -> LogRendering:
    """Renders the request as a replay would, without reading the store where equal paths prove equal messages."""
    messages, match = recognized.client_request.messages, recognized.match
    same_path = match.stored_end == 0 or match.client_path == match.head_path
    body_bytes = len(recognized.client_request.raw)
    if recognized.is_native and same_path and all(each.is_plain_text for each in messages):
        return await run_sized(body_bytes, _render_plain_texts, recognized)
    history, stored = recognized.find_history(), None
    if history is None:
        stored = await _render_stored(recognized, store, same_path=same_path)
        last_path = stored[-1][1] if stored else CHAIN_ROOT
        if match.client_path is not None and match.compaction is None and last_path == match.head_path:
            # The client's list starts with the whole branch.
            rendered, paths = [each for each, _ in stored], [path for _, path in stored]
            history = await run_sized(body_bytes, RenderedHistory().extend, rendered, paths, recognized.message_counter)
    if history is not None:
        size = body_bytes if stored is not None else recognized.client_request.work_bytes
        rendering = await run_sized(size, _render_after_history, recognized, history)
        if rendering is not None:
            return rendering
    if stored is None:
        stored = await _render_stored(recognized, store, same_path=same_path)
    before = [each for each, _ in stored]

    def render() -> LogRendering:
        request = _lay_out_messages(recognized, *_split_at_newest_batch(recognized, before))
        replayable = not recognized.is_native or _is_equivalent(recognized, request)
        return LogRendering(rendered_request=request, replayable=replayable)

    return await run_sized(body_bytes, render)


def _render_plain_texts(recognized: RecognizedRequest) -> LogRendering:
    # Only what a digest needs.
    rendered = [
        RenderedMessage(None, _EMPTY_MESSAGE, (), each.wire_json, 0, "user", ())
        for each in recognized.client_request.messages
    ]
    stored_end = recognized.match.stored_end
    request = _lay_out_messages(recognized, rendered[:stored_end], rendered[stored_end:])
    history = RenderedHistory() if recognized.match.head_path == CHAIN_ROOT else None
    return LogRendering(rendered_request=request, replayable=True, history=history)


def _render_after_history(recognized: RecognizedRequest, history: RenderedHistory) -> LogRendering | None:
    """Renders the new messages after the history, or None if their tool calls repeat earlier ids and are renamed."""
    rest = _lay_out_messages(recognized, *_split_at_newest_batch(recognized, history.open_batch))
    if not history.call_ids.isdisjoint(list_call_ids(rest.messages)):
        return None
    request = replace(
        rest,
        messages=(*history.laid_out, *rest.messages),
        stable_messages=len(history.laid_out) + rest.stable_messages,
    )
    replayable = not recognized.is_native or _is_replayable(recognized, history, request)
    digest_start = request.start_digest(len(history.laid_out), history.digest_start)
    return LogRendering(
        rendered_request=replace(request, digest_start=digest_start),
        replayable=replayable,
        history=replace(history, digest_start=digest_start),
    )


def _is_replayable(recognized: RecognizedRequest, history: RenderedHistory, request: RenderedRequest) -> bool:
    """Whether the rendered messages equal the client's. A known start is compared once, as far as an earlier request
    has not. Without one, or if its messages do not have their places in the history, the whole list is compared.
    """
    client_request = recognized.client_request
    known, codec = client_request.known_start, client_request.codec
    count = len(known.messages)
    if not count or not history.is_unchanged or count > len(history.laid_out):
        return _is_equivalent(recognized, request)
    start = known.equivalents.get(codec.name)
    if start is None or history.paths[start.message_count - 1] != start.log_path:
        start = EquivalentStart(0, known.first_item, b"", is_equivalent=True)
    if start.message_count < count:
        rendered = _list_wire_messages(history.laid_out[start.message_count : count])
        sent = filter_objects(list(known.items[start.item_count :]))
        is_equivalent = start.is_equivalent and codec.is_equivalent(rendered, sent)
        start = EquivalentStart(count, len(known.items), history.paths[count - 1], is_equivalent)
        known.equivalents[codec.name] = start
    sent = filter_objects(client_request.body[codec.item_field][start.item_count :])
    rendered = _list_wire_messages(request.messages[start.message_count :])
    return start.is_equivalent and codec.is_equivalent(rendered, sent)


def _is_equivalent(recognized: RecognizedRequest, request: RenderedRequest) -> bool:
    client_request = recognized.client_request
    sent = client_request.codec.list_sent(client_request, start=recognized.match.stored_start)
    return sent is not None and client_request.codec.is_equivalent(_list_wire_messages(request.messages), sent)


def _list_wire_messages(messages: Sequence[RenderedMessage]) -> list[WireMessage]:
    return [wire_message for each in messages for wire_message in each.wire_messages]


async def _render_stored(recognized: RecognizedRequest, store: SqlStore, *, same_path: bool) -> _StoredMessages:
    counter, match = recognized.message_counter, recognized.match
    if same_path:
        # The client's stored messages have the paths of the log.
        client_request = recognized.client_request
        messages = client_request.messages[: match.stored_end]

        def render() -> _StoredMessages:
            known_paths = client_request.known_start.paths[: len(messages)]
            paths = compute_client_paths(messages[len(known_paths) :], known_paths=known_paths)
            rendered = [render_client_message(each.normalized, counter) for each in messages]
            return list(zip(rendered, paths, strict=True))

        return await run_sized(len(client_request.raw), render)
    if match.entry_range is None:
        return []
    first, last = match.entry_range
    entries = match.entries or await store.read_range(
        match.conversation, branch=match.branch, first=first, last=last, kinds=["message"]
    )
    engine = recognized.variant.engine
    await engine.runtime.blobs.load(engine.store, entries)
    rendered = await run_sized(sum(len(entry.raw) for entry in entries), counter.render_entries, entries)
    sent = recognized.client_request.messages[match.stored_start : match.stored_end]
    if store.masker is not None and len(sent) == len(rendered):
        # The record has masks where the client has secrets, which the model gets as they are.
        rendered = [
            render_client_message(own.message, counter)._replace(seq=each.seq) if MASK_MARK in entry.raw else each
            for own, each, entry in zip(sent, rendered, entries, strict=True)
        ]
    return [(each, entry.path) for each, entry in zip(rendered, entries, strict=True)]


def _split_at_newest_batch(
    recognized: RecognizedRequest, stored: Sequence[RenderedMessage]
) -> tuple[Sequence[RenderedMessage], Sequence[RenderedMessage]]:
    """Returns the history and the new messages. New tool results take the stored call that they answer with them."""
    counter, new = recognized.message_counter, recognized.rendered_new
    if recognized.answers_stored_call:
        call = max((index for index, each in enumerate(stored) if each.role != "tool"), default=0)
        stored, new = stored[:call], [*stored[call:], *new]
    return repair_tool_calls(stored, counter).messages, repair_tool_calls(new, counter).messages


def _lay_out_messages(
    recognized: RecognizedRequest, history: Sequence[RenderedMessage], newest: Sequence[RenderedMessage]
) -> RenderedRequest:
    contents = RequestContents(
        system=recognized.envelope.system,
        tools=recognized.envelope.tools,
        batches={"history": group_batches(history), "newest": group_batches(newest)},
    )
    policy = recognized.variant.engine.policy
    return lay_out(contents, recognized.message_counter, model=policy.model, tokens=recognized.tokens)
