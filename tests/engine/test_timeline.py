"""The timeline: a row per request that equals its manifest, the fate of every message, and who changed the context."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from infra.builders import make_entry, make_messages, property_settings
from quire.engine import Engine, EngineConfig
from quire.ledger.timeline import Fate, Timeline, build_timeline, encode_fates, load_timeline
from quire.llm import Reply
from quire.log import ReplyRecord
from quire.model import (
    Compaction,
    ContextEpoch,
    Decision,
    Draft,
    Drop,
    Manifest,
    Message,
    Pin,
    Policy,
    Restore,
    Span,
    Undrop,
    Usage,
)
from quire.model.entry_bodies import IMPORTED_STRATEGY, ListAnchor
from quire.model.entry_metadata import EntryMetadata
from quire.model.manifest import DecisionReason, ForwardedRequest, ProviderEdit, SlotUsage
from quire.model.policy import SLOTS
from quire.schemas.timeline import TimelineSchema
from quire.settings import Settings
from quire.store import SqlStore

EXPECTED_FATES: dict[DecisionReason, Fate] = {
    "recalled": "r", "pinned": "k", "priority": "k", "question": "k", "restored": "b", "excerpted": "x", "cleared": "c",
    "cleared_by_provider": "c", "dropped": "d", "archived": "s", "compacted_by_provider": "s",
}  # fmt: skip


def find_fate(manifest: Manifest, seq: int) -> Fate:
    """The fate of a message, read from the decisions one by one; "-" if the manifest says nothing about it."""
    found = [row for row in manifest.decisions if row.kind == "message" and row.span and seq in row.span]
    fates: list[Fate] = [
        "s" if row.slot == "recall" and not row.included
        else EXPECTED_FATES.get(row.reason, "w" if row.included else "o")
        for row in found
    ]  # fmt: skip
    said: list[Fate] = [fate for fate in fates if fate not in "wox"] or fates
    return said[0] if said else "-"


def decode_fates(code: str) -> Iterator[tuple[Span, Fate]]:
    """The runs of a code. Entries after the last one are no part of the request."""
    position, index = 1, 0
    while index < len(code):
        end = index + 1
        while end < len(code) and code[end].isdigit():
            end += 1
        count = int(code[index + 1 : end] or 1)
        yield Span(first=position, last=position + count - 1), cast(Fate, code[index])
        position, index = position + count, end


def expand(code: str) -> dict[int, Fate]:
    return {seq: fate for span, fate in decode_fates(code) for seq in range(span.first, span.last + 1)}


async def make_long_conversation(store: SqlStore, *, turns: int = 24) -> None:
    """Turns in a small window: compactions, recalled messages, a pin."""
    random = Random(3)
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 1_500, "reserved_response_tokens": 200})
    engine = Engine(store, EngineConfig.create(settings))
    conversation = await engine.conversation("c")
    for number in range(turns):
        words = " ".join(random.choices(["gate", "silt", "wheel", "sluice", "heron", "elm", "flour"], k=40))
        request = await conversation.prepare(f"Question {number} on the {words}")
        usage = Usage(input_tokens=request.manifest.total_tokens, output_tokens=9, cache_read_tokens=number)
        await conversation.record(Reply(Message.assistant(f"About {words}."), usage, "stop"), request=request)
        if number == 5:
            await conversation.pin(1)


async def test_each_row_equals_its_manifest(store: SqlStore) -> None:
    await make_long_conversation(store)
    timeline = await load_timeline(store, "c")
    manifests = dict(await store.list_manifests("c"))
    assert [row.reply for row in timeline.rows] == list(manifests)
    assert [(row.turn, row.step) for row in timeline.rows] == [(number, 1) for number in range(1, 25)]
    seen = set[Fate]()
    messages = {entry.seq for entry in await store.read_range("c", kinds=["message"])}
    for row in timeline.rows:
        manifest, entry = manifests[row.reply], await store.get_entry("c", row.reply)
        used = {each.slot: each.used for each in manifest.slots}
        assert row.slots == tuple(used.get(slot, 0) for slot in SLOTS)
        assert sum(row.slots) == row.total_tokens == manifest.total_tokens
        assert (row.window, row.trigger_tokens) == (1_500, manifest.trigger_tokens)
        assert row.full_history_tokens == manifest.full_history_tokens
        assert entry.metadata.usage is not None
        assert row.cache_read_tokens == entry.metadata.usage.cache_read_tokens
        assert (row.cost_usd, row.created_at) == (entry.metadata.cost_usd, entry.created_at)
        fates = expand(row.fates)
        expected = {seq: find_fate(manifest, seq) for seq in messages if seq < row.reply}
        assert {seq: fates.get(seq, "-") for seq in expected} == expected
        seen |= set(expected.values())
    assert seen >= {"w", "s", "r", "k"}
    compactions = [event for event in timeline.events if event.kind == "compaction"]
    assert compactions
    assert {event.author for event in compactions} == {"quire"}
    assert all(event.freed_tokens for event in compactions)


async def test_pages_and_updates_add_up_to_the_whole(store: SqlStore) -> None:
    await make_long_conversation(store)
    whole = await load_timeline(store, "c")
    since, rows, events = 0, list[object](), list[object]()
    while since is not None:
        page = await load_timeline(store, "c", since=since, limit=5)
        assert len(page.rows) <= 5
        rows += page.rows
        events += page.events
        since = page.next_since
    assert rows == whole.rows
    assert events == whole.events
    update = await load_timeline(store, "c", since=whole.rows[-3].reply)
    assert update.rows == whole.rows[-2:]
    assert all(event.seq > whole.rows[-3].reply for event in update.events)


async def test_each_change_names_its_author(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(4))
    covers, supersedes = Span(first=1, last=2), None
    authors = {"threshold": "quire", "client": "client", "provider": "provider", "manual": "user", "model": "model"}
    for number, trigger in enumerate(authors, 1):
        body = Compaction(number=number, covers=covers, summary="s", trigger=trigger, supersedes=supersedes)  # type: ignore[arg-type]
        [entry] = await store.append("c", body)
        supersedes = entry.seq
    assert supersedes is not None
    await store.append("c", Restore(compaction=supersedes), Pin(message=3), Drop(message=4), Undrop(message=4))
    await store.append("c", ContextEpoch(newest=ListAnchor(index=3, digest="d")))
    events = (await load_timeline(store, "c")).events
    assert [event.author for event in events[:5]] == list(authors.values())
    assert events[5].undone == supersedes
    assert [(event.kind, event.author) for event in events[5:]] == [
        ("restore", "user"), ("pin", "user"), ("drop", "user"), ("undrop", "user"), ("epoch", "quire")
    ]  # fmt: skip
    assert events[6].span == Span(first=3, last=3)


async def test_an_imported_request_has_what_its_usage_says(store: SqlStore) -> None:
    await store.create_conversation("c")
    usage = Usage(model="claude", input_tokens=900, output_tokens=20, cache_read_tokens=800, cache_write_tokens=50)
    reply = Draft(body=Message.assistant("Done."), usage=usage, cost_usd=0.25)
    await store.append("c", Message.user("Do it."), reply, Message.user("And now?"), Message.assistant("No usage."))
    summary = Compaction(number=1, covers=Span(first=1, last=3), summary="s", strategy=IMPORTED_STRATEGY,
                         trigger="threshold", tokens_before=900, tokens_after=100)  # fmt: skip
    await store.append("c", summary, Message.user("Go on."), reply)
    timeline = await load_timeline(store, "c")
    first, second = timeline.rows
    assert (first.reply, first.total_tokens, first.cache_read_tokens, first.cost_usd) == (2, 900, 800, 0.25)
    assert (first.window, first.trigger_tokens, first.slots, first.model) == (None, None, (), "claude")
    assert (first.fates, second.fates, second.turn) == ("w", "s3w3", 3)
    [event] = timeline.events
    assert (event.author, event.freed_tokens) == ("client", 800)
    await store.append("c", summary.model_copy(update={"number": 2, "supersedes": event.seq, "tokens_after": 0}))
    assert (await load_timeline(store, "c")).events[-1].freed_tokens is None, "what was left is not known"


def make_manifest(decisions: Sequence[Decision], forwarded: ForwardedRequest | None = None) -> Manifest:
    return Manifest(
        renderer=1, conversation="c", branch=0, head=9, policy=Policy(model="m", wire_format="chat", window=4_000),
        counter="c", exact=True, slots=tuple(SlotUsage(slot=slot, budget=900, used=123) for slot in SLOTS),
        total_tokens=8 * 123, full_history_tokens=2_000, max_input_tokens=3_500, trigger_tokens=3_400,
        decisions=tuple(decisions), stable_messages=1, digest="a" * 64, forwarded=forwarded,
    )  # fmt: skip


def decide(first: int, last: int, reason: DecisionReason, *, included: bool = True) -> Decision:
    return Decision(
        slot="messages", kind="message", included=included, reason=reason, span=Span(first=first, last=last)
    )


@property_settings
@given(
    cuts=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["recent", "excerpted", "over_budget", None])), max_size=8
    ),
    edits=st.dictionaries(
        st.integers(1, 30), st.sampled_from(["dropped", "pinned", "cleared_by_provider"]), max_size=8
    ),
)
def test_the_code_says_what_the_decisions_say(
    cuts: list[tuple[int, DecisionReason | None]], edits: dict[int, DecisionReason]
) -> None:
    rows, position = list[Decision](), 1
    for length, reason in cuts:
        if reason is not None:
            rows.append(decide(position, position + length - 1, reason, included=reason != "over_budget"))
        position += length
    rows += [decide(seq, seq, reason, included=reason == "pinned") for seq, reason in edits.items()]
    manifest = make_manifest(rows)
    fates = expand(encode_fates(json.loads(manifest.canonical_json())))
    assert {seq: fates.get(seq, "-") for seq in range(1, 60)} == {seq: find_fate(manifest, seq) for seq in range(1, 60)}


async def test_a_client_s_summary_replaces_what_its_list_no_longer_has(store: SqlStore) -> None:
    edits = (ProviderEdit(type="clear", cleared_tool_uses=2, cleared_input_tokens=700),)
    forwarded = ForwardedRequest(
        form="unchanged", digest="", replayable=True, unrecorded_messages=1, provider_edits=edits
    )
    rows = [decide(5, 8, "recent"), decide(6, 6, "cleared_by_provider", included=False)]
    manifest = make_manifest(rows, forwarded)
    assert encode_fates(json.loads(manifest.canonical_json())) == "s4wcw2"

    await store.create_conversation("c")
    for text in ("one", "two"):
        drafts = (Draft(body=Message.user(text)), Draft(body=Message.assistant(text)))
        head = (await store.get_branch("c")).head_path
        await store.record_reply("c", ReplyRecord(drafts=drafts, build_manifest=lambda _: manifest), after=head)
    # The same edit with every request is one event.
    [event] = (await load_timeline(store, "c")).events
    assert (event.kind, event.author, event.freed_tokens) == ("provider_edit", "provider", 700)


def test_a_thousand_requests_take_at_most_300_kilobytes_and_less_time_than_their_manifests() -> None:
    """Each request has 60 recall candidates among archived messages, as the manifests of a long chat have them."""
    random = Random(7)
    metadata = EntryMetadata(
        usage=Usage(model="m", input_tokens=123_456, output_tokens=789, cache_read_tokens=120_000), cost_usd=0.123456
    )
    replies = [
        make_entry(seq, Message.assistant("a"))._replace(
            raw_metadata=metadata.canonical_json(), created_at=1_794_958_130_148_632
        )
        for seq in range(2, 2_001, 2)
    ]
    samples = [make_recalling_manifest(head, random).canonical_json() for head in range(100, 2_000, 100)]
    texts = {reply.seq: samples[index % len(samples)] for index, reply in enumerate(replies)}
    roles = [(seq, "user" if seq % 2 else "assistant") for seq in range(1, 2_001)]

    def write_timeline() -> str:
        rows, events = build_timeline(roles, replies, texts, [])
        timeline = Timeline(rows, events, None)
        return TimelineSchema.from_timeline(timeline, conversation="c", branch=0).model_dump_json()

    def measure(function: Callable[[], object]) -> float:
        started = time.process_time()
        function()
        return time.process_time() - started

    assert len(json.loads(write_timeline())["replies"]) == 1_000
    assert len(write_timeline()) <= 300_000
    parsing = min(measure(lambda: [Manifest.parse(text) for text in texts.values()]) for _ in range(2))
    assert min(measure(write_timeline) for _ in range(2)) < 0.75 * parsing


def make_recalling_manifest(head: int, random: Random) -> Manifest:
    candidates = sorted(random.sample(range(1, max(2, head - 60)), k=min(60, max(0, head - 62))))
    rows = [
        Decision(slot="tools", kind="tool", included=True, reason="always", tokens=80, name=f"t{n}", blob="b" * 64)
        for n in range(8)
    ]
    edges = [0, *candidates, max(0, head - 60)]
    rows += [
        decide(before + 1, after - 1, "archived", included=False)
        for before, after in pairwise(edges)
        if before + 1 < after
    ]
    for seq in candidates:
        taken, span = random.random() < 0.4, Span(first=seq, last=seq)
        reason: DecisionReason = "recalled" if taken else "over_budget"
        rows.append(Decision(slot="recall", kind="message", included=taken, reason=reason, span=span, score=0.123456))
    return make_manifest([*rows, decide(max(1, head - 59), max(1, head), "recent")])
