"""Edits of the list that a client holds: a pure function of the list, the epoch in the log, and texts of the log.

The client keeps its own list and sends it again with every request. What the user drops, pins or restores is applied to
it on the way, each time in the same way, so that every list that is sent extends the one before it: an epoch names
the items and results that it edits, never a rule such as "older than ten". Only what is edited is encoded again. All
other bytes are the client's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from quire.model.entry_bodies import ContextEpoch, DroppedItem, EditedSummary, ListAnchor, QuotedMessage
from quire.model.json_values import dump_json, is_object
from quire.proxy.known_messages import iter_item_spans
from quire.wire import WireMessage
from quire.wire.item_edits import ItemEditor
from quire.wire.labels import describe_drop


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTexts:
    """What an epoch takes from the log. A purged message is in neither."""

    quotes: Mapping[int, str] = field(default_factory=dict[int, str])
    """Texts of quoted messages, by number."""
    restored: Sequence[WireMessage] = ()
    """Items of the restored messages."""
    summary: str | None = None
    """The text in place of the client's summary."""


class EditedList(NamedTuple):
    """Items in place of the client's, by index. An empty sequence removes the item."""

    replaced: Mapping[int, Sequence[WireMessage]]
    dropped: frozenset[int] = frozenset()
    """Messages of which the list has stubs."""
    quoted: frozenset[int] = frozenset()
    """Messages that are quoted."""

    def apply(self, items: Sequence[object]) -> list[object]:
        return [each for index, item in enumerate(items) for each in self.replaced.get(index, (item,))]


def edit_list(
    items: Sequence[object],
    epoch: ContextEpoch,
    texts: LogTexts,
    editor: ItemEditor,
    *,
    places: range | None = None,
) -> EditedList:
    """Applies an epoch to a list, or to these places of it."""
    places = places if places is not None else range(len(items))
    replaced: dict[int, Sequence[WireMessage]] = {}
    restored, dropped = _apply_drops(replaced, items, epoch, texts.restored, editor, places)
    _strip_thinking(replaced, items, epoch, editor, places)
    summary = epoch.summary
    if summary is not None and places.start <= summary.item.index and editor.holds_anchor(items, summary.item):
        # The newest message when the epoch began, and all that followed it, stay.
        earlier = items[: max(epoch.newest.index, summary.item.index + 1)]
        replaced.update(_replace_summary(earlier, summary, texts, restored, editor))
    quoted: set[int] = set()
    for quote in epoch.quotes or ():
        text, index = texts.quotes.get(quote.message), quote.behind.index
        if text and index in places and editor.holds_anchor(items, quote.behind):
            before = replaced.get(index, [item] if is_object(item := items[index]) else ())
            if before and not editor.has_quote([*before, *items[index + 1 :]], text):
                replaced[index] = [*before[:-1], *editor.quote_behind(before[-1], text)]
                quoted.add(quote.message)
    return EditedList(replaced, frozenset(dropped), frozenset(quoted))


def _replace_summary(
    items: Sequence[object],
    summary: EditedSummary,
    texts: LogTexts,
    restored: Sequence[WireMessage],
    editor: ItemEditor,
) -> dict[int, Sequence[WireMessage]]:
    """What takes the place of the client's summary and of the user's messages before it. Instructions stay."""
    index = summary.item.index
    objects = [item if is_object(item) else {} for item in items]
    bare = [stripped for each in restored if (stripped := editor.strip_thinking(each)) is not None]
    questions = Counter(editor.join_texts(each) for each in bare if editor.is_question(each))
    question_places = [at for at, each in enumerate(objects) if editor.is_question(each)]
    replies = (at for at, each in enumerate(objects) if at > index and editor.is_reply(each))
    first_reply = next(replies, len(objects))
    before = [at for at in question_places if at < index]
    behind = [at for at in question_places if index < at < first_reply]
    is_whole = summary.restored is not None and not summary.is_partial
    unanswered = [*takewhile(editor.is_question, reversed(bare))]
    summarized, rest = editor.split_summary(objects[index])
    if unanswered:
        # What is restored ends with it.
        repeated = set(editor.list_texts(unanswered[0]))
        rest = [editor.remove_texts(each, repeated) for each in rest if not repeated >= set(editor.list_texts(each))]
    if is_whole and not bare:
        # A purge may have removed all of it.
        return {}
    if is_whole:
        replaced: dict[int, Sequence[WireMessage]] = {**dict.fromkeys(before, ()), index: [*bare, *rest]}
    elif summary.compaction is not None and texts.summary:
        replaced = {index: [editor.replace_text(summarized, texts.summary), *bare, *rest]}
    else:
        replaced = {index: [editor.remove_texts(summarized, questions.keys()), *bare, *rest]}
    # Clients keep messages of the user before the summary and behind it. One that is restored is at its own place. The
    # last one before a reply may repeat an earlier one, unless what is restored ends with it.
    if unanswered and behind and set(editor.list_texts(unanswered[0])) <= set(editor.list_texts(objects[behind[-1]])):
        questions[editor.join_texts(unanswered[0])] -= 1
        replaced[behind[-1]] = ()
    for at in reversed([*(() if is_whole else before), *behind[:-1]]):
        text = editor.join_texts(objects[at])
        if questions[text] > 0:
            questions[text] -= 1
            replaced[at] = ()
    return replaced


def _apply_drops(
    replaced: dict[int, Sequence[WireMessage]],
    items: Sequence[object],
    epoch: ContextEpoch,
    restored: Sequence[WireMessage],
    editor: ItemEditor,
    places: range,
) -> tuple[Sequence[WireMessage], set[int]]:
    """Puts stubs in place of what was dropped. Returns the restored items with stubs, and the dropped messages."""
    dropped: set[int] = set()
    drops = {each.call_id: each for each in epoch.drops or () if each.call_id is not None}
    found = {
        index: [drops[call_id] for call_id, _ in editor.list_results(item) if call_id in drops]
        for index in (places if drops else ())
        if is_object(item := items[index])
    }
    if restored or any(found.values()):
        calls = _list_calls((*restored, *items), drops, editor)
        for index, in_item in found.items():
            if in_item and is_object(item := items[index]):
                replaced[index] = [_stub_results(item, drops, calls, editor)]
                dropped.update(each.message for each in in_item)
        restored = [_stub_results(item, drops, calls, editor) for item in restored]
    for drop in epoch.drops or ():
        anchor = drop.item
        if anchor is None or anchor.index not in places or not editor.holds_anchor(items, anchor):
            continue
        if is_object(item := items[anchor.index]):
            stub = describe_drop("a message", chars=drop.chars, message=drop.message)
            replaced[anchor.index] = [editor.replace_text(item, stub)]
            dropped.add(drop.message)
    return restored, dropped


def _list_calls(items: Iterable[object], drops: Mapping[str, DroppedItem], editor: ItemEditor) -> dict[str, str]:
    """The calls of dropped results, each as one line."""
    return {
        call_id: f"{name} {arguments if isinstance(arguments, str) else dump_json(arguments)}"
        for item in items
        if is_object(item)
        for call_id, name, arguments in editor.list_calls(item)
        if call_id in drops
    }


def _stub_results(
    item: WireMessage, drops: Mapping[str, DroppedItem], calls: Mapping[str, str], editor: ItemEditor
) -> WireMessage:
    """The item with stubs in place of dropped results. Itself if it has none."""
    stubs = {
        call_id: describe_drop(calls.get(call_id, "a tool"), chars=drop.chars, message=drop.message)
        for call_id, _ in editor.list_results(item)
        if (drop := drops.get(call_id)) is not None
    }
    return editor.replace_results(item, stubs) if stubs else item


def _strip_thinking(
    replaced: dict[int, Sequence[WireMessage]],
    items: Sequence[object],
    epoch: ContextEpoch,
    editor: ItemEditor,
    places: range,
) -> None:
    """Removes all signed reasoning from the front up to the place where the epoch began: it was signed for another
    list."""
    stale = epoch.stale_thinking
    if stale is None or stale.index < places.start or not editor.holds_anchor(items, stale):
        return
    for index in range(places.start, min(stale.index + 1, places.stop)):
        before = replaced.get(index, [item] if is_object(item := items[index]) else ())
        if any(map(editor.has_signed_thinking, before)):
            replaced[index] = [stripped for each in before if (stripped := editor.strip_thinking(each)) is not None]


def splice_items(raw: bytes, position: int, items: EditedList, *, start: int = 0) -> tuple[bytes, int]:
    """The items of a list from `start` on as they are sent, and the position of the list's end in `raw`.

    `position` is where the first of these items begins, or the comma before it. All that is not edited has the client's
    bytes.
    """
    text = raw.decode("latin-1")
    pieces: list[bytes] = []
    run: tuple[int, int] | None = None
    end = position
    for index, (first, end) in enumerate(iter_item_spans(text, position), start):
        replacement = items.replaced.get(index)
        if replacement is None:
            run = (run[0] if run is not None else first, end)
            continue
        if run is not None:
            pieces.append(raw[run[0] : run[1]])
            run = None
        pieces += [dump_json(each).encode(errors="surrogatepass") for each in replacement]
    if run is not None:
        pieces.append(raw[run[0] : run[1]])
    return b",".join(pieces), end


class DropTarget(NamedTuple):
    """A message that the user dropped, as the log has it."""

    message: int
    results: Sequence[tuple[str, int]] = ()
    """Call and length of each of its tool results."""
    tokens: int = 0
    role: str = ""
    text: str = ""
    """Text of a message without results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedEdits:
    """What the log says that the list should be sent as."""

    drops: Sequence[DropTarget] = ()
    quotes: Sequence[int] = ()
    """Messages that the list lacks and should have."""
    summary: EditedSummary | None = None


def plan_epoch(
    items: Sequence[object],
    current: ContextEpoch | None,
    requested: RequestedEdits,
    editor: ItemEditor,
    *,
    may_break: bool,
) -> ContextEpoch | None:
    """The epoch that begins with this list, or None if the current one continues.

    A quotation is put behind the newest message of the user: it changes nothing before it. All else changes the list
    in place, which breaks the prompt cache and invalidates reasoning that was signed for the list before. So such edits
    wait for the start of a user's turn, and until the caller says that the cache may break. They then begin together.
    """
    current = current or ContextEpoch(newest=ListAnchor(index=0, digest=""))
    protected = _find_newest_round(items, editor)
    drops = tuple(_locate_drops(items, requested, protected, editor))
    held = {each.message: each for each in current.quotes or () if editor.holds_anchor(items, each.behind)}
    removed = [each for each in held.values() if each.message not in requested.quotes]
    changes_in_place = bool(removed) or drops != (current.drops or ()) or requested.summary != current.summary
    starts_turn = not any(is_object(each) and editor.has_signed_thinking(each) for each in items[protected:])
    in_place = changes_in_place and starts_turn and may_break
    if in_place:
        held = {number: each for number, each in held.items() if number in requested.quotes}
    else:
        drops = tuple(current.drops or ())
    summary = requested.summary if in_place else current.summary
    for number in requested.quotes:
        if number not in held and (place := _find_newest_user_item(items, editor)) is not None:
            held[number] = QuotedMessage(message=number, behind=editor.make_anchor(items, place))
    newest = editor.make_anchor(items, len(items) - 1)
    stale = current.stale_thinking
    if in_place:
        stale = newest
    elif stale is not None and not editor.holds_anchor(items, stale):
        # The client has rewound or compacted its list. What it has of reasoning may be from before the edits.
        last = len(items) if starts_turn else protected
        is_signed = any(is_object(each) and editor.has_signed_thinking(each) for each in items[:last])
        stale = editor.make_anchor(items, last - 1) if is_signed else None
    epoch = ContextEpoch(
        newest=newest,
        changes_in_place=in_place or None,
        drops=drops or None,
        quotes=tuple(held.values()) or None,
        summary=summary,
        stale_thinking=stale,
    )
    unchanged = {"newest": current.newest, "changes_in_place": current.changes_in_place}
    return None if epoch.model_copy(update=unchanged) == current else epoch


def is_settled(
    items: Sequence[object],
    epoch: ContextEpoch,
    editor: ItemEditor,
    *,
    dropped: frozenset[int],
    quotes: Sequence[int],
    summary: EditedSummary | None,
) -> bool:
    """Whether the epoch has all requested edits, and the list is still the one that it edits."""
    if frozenset(each.message for each in epoch.drops or ()) != dropped or epoch.summary != summary:
        return False
    if {each.message for each in epoch.quotes or ()} != set(quotes):
        return False
    anchors = [epoch.stale_thinking, epoch.summary.item if epoch.summary is not None else None]
    anchors += [each.behind for each in epoch.quotes or ()]
    anchors += [each.item for each in epoch.drops or ()]
    return all(editor.holds_anchor(items, each) for each in anchors if each is not None)


def _find_newest_user_item(items: Sequence[object], editor: ItemEditor) -> int | None:
    places = range(len(items) - 1, -1, -1)
    return next((index for index in places if is_object(item := items[index]) and editor.is_user_item(item)), None)


def _find_newest_round(items: Sequence[object], editor: ItemEditor) -> int:
    """Index of the first item of the newest round: the user's newest message, or the newest reply with its results."""
    newest = len(items) - 1
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if is_object(item) and editor.is_reply(item):
            return index if newest == index or not _asks(items[index + 1 :], editor) else index + 1
    return 0


def _asks(items: Sequence[object], editor: ItemEditor) -> bool:
    """Whether these items, which follow a reply, begin a turn of the user."""
    objects = [item for item in items if is_object(item)]
    return any(map(editor.is_question, objects)) and not any(
        True for item in objects for _ in editor.list_results(item)
    )


def _locate_drops(
    items: Sequence[object], requested: RequestedEdits, protected: int, editor: ItemEditor
) -> Iterable[DroppedItem]:
    """What the dropped messages are in this list. Nothing of the newest round is dropped."""
    held_back = {call_id for item in items[protected:] if is_object(item) for call_id, _ in editor.list_results(item)}
    for target in requested.drops:
        for call_id, chars in target.results:
            if call_id not in held_back:
                yield DroppedItem(message=target.message, chars=chars, tokens=target.tokens, call_id=call_id)
        if target.results or not target.text:
            continue
        for index, item in enumerate(items[:protected]):
            if is_object(item) and editor.has_role(item, target.role) and editor.join_texts(item) == target.text:
                anchor, chars = editor.make_anchor(items, index), len(target.text)
                yield DroppedItem(message=target.message, chars=chars, tokens=target.tokens, item=anchor)
                break
