"""Properties of the view over any history: within budget, valid, complete, stable, explained by its manifest."""

import asyncio
import json
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from view_builders import make_message_counter, make_policy, make_view_input

from infra.builders import make_entries, make_entry
from infra.sizes import IS_FULL_SIZE
from infra.strategies import histories, questions
from payload_oracle import count_payload
from quire.errors import ContextOverflow, InvalidRequest, UnknownStrategy
from quire.ledger import replay
from quire.log import Blob
from quire.model import Compaction, Decision, Entry, Message, Policy, Span, ToolDefinition
from quire.model.entry_bodies import purge_body
from quire.model.entry_metadata import DocumentReference
from quire.view.assembly import Assembly, assemble
from quire.view.batches import MessageBatch, group_batches, repair_tool_calls
from quire.view.counted_input import count_summary
from quire.view.excerpts import excerpt_message
from quire.view.inputs import ContextBlock, SelectedTool, ViewInput, hash_text
from quire.view.recalled_messages import RecallCandidate
from quire.view.rendered import MessageCounter, drop_unsupported_parts, inline_documents
from quire.wire import wire_format_for
from quire.wire.labels import label_text
from quire.wire.tokens import counter_for

EXAMPLE_COUNT = (8 if IS_FULL_SIZE else 2) * settings.default.max_examples
PROVIDERS = ("chat", "messages", "responses")
MESSAGE_COUNTERS = {provider: make_message_counter(provider) for provider in PROVIDERS}
TOOL = ToolDefinition(name="read", description="Reads.", parameters={"type": "object", "properties": {}})


@st.composite
def cases(draw: st.DrawFn) -> tuple[ViewInput, dict]:
    """View input with a history, perhaps compacted, pins, documents, tools and a question; and policy changes."""
    messages = draw(histories())
    entries = make_entries(messages)
    compaction, pinned, recalled, first = None, (), (), 0
    if entries and draw(st.booleans()):
        first = draw(st.integers(1, len(entries)))
        summary = draw(st.none() | st.text(max_size=200))
        covering = Compaction(number=1, covers=Span(first=1, last=first), summary=summary)
        compaction = make_entry(len(entries) + 1, covering)
        pinned = tuple(sorted(draw(st.sets(st.sampled_from(entries[:first]), max_size=2)), key=lambda entry: entry.seq))
        archived = [entry for entry in entries[:first] if entry not in pinned]
        recalled = draw(candidates(archived)) if archived else ()
    blocks = draw(st.lists(documents(), max_size=3))
    question, document_decisions = draw(referencing_questions())
    pins = draw(st.frozensets(st.integers(1, max(1, len(entries))), max_size=2))
    view_input = ViewInput(
        conversation="c",
        branch=0,
        head=len(entries) + (compaction is not None),
        blocks=(*instructions(draw(st.booleans())), *blocks),
        tools=(SelectedTool(TOOL),) if draw(st.booleans()) else (),
        compaction=compaction,
        pinned=pinned,
        history=entries[first:],
        pins=pins | {entry.seq for entry in pinned},
        pending=(question,),
        document_decisions=document_decisions,
        recall_candidates=tuple(recalled),
    )
    window = draw(st.sampled_from([512, 700, 1_024, 2_048, 8_192, 32_000, 200_000]))
    changes = {
        "wire_format": draw(st.sampled_from(PROVIDERS)),
        "strategy": draw(st.sampled_from(["discard", "summarize", "hybrid"])),
        "window": window,
        "reserved_response_tokens": draw(st.integers(0, window // 4)),
    }
    return view_input, changes


@st.composite
def referencing_questions(draw: st.DrawFn) -> tuple[Message, tuple[Decision, ...]]:
    """A question that references documents: some injected into it, some listed, some not found."""
    question = draw(questions())
    references: list[DocumentReference] = []
    decisions: list[Decision] = []
    for number, text in enumerate(draw(st.lists(st.text(max_size=2_000), max_size=3))):
        outcome = draw(st.sampled_from(["referenced", "listed", "not_found"]))
        link, path = f"[[{number}]]", f"{number}.md"
        references.append(
            DocumentReference(
                link=link,
                path=None if outcome == "not_found" else path,
                blob=text if outcome == "referenced" else None,
                injected=outcome == "referenced",
            )
        )
        document = f"\n\n{label_text('document', text, name=path, link=link)}"
        decisions.append(
            Decision(
                slot="newest",
                kind="document",
                included=outcome == "referenced",
                reason=outcome,
                tokens=0 if outcome == "not_found" else counter_for("gpt-4o").count(document),
                name=f"{number}.md",
            )
        )
    return inline_documents(question, references, lambda text: text), tuple(decisions)


def candidates(archived: list[Entry]) -> st.SearchStrategy[list[RecallCandidate]]:
    pieces = st.none() | st.tuples(st.tuples(st.integers(0, 5), st.integers(6, 20)))
    candidate = st.builds(RecallCandidate, st.sampled_from(archived), st.floats(0, 1), pieces)
    return st.lists(candidate, max_size=4, unique_by=lambda candidate: candidate.entry.seq)


def instructions(included: bool) -> list[ContextBlock]:
    if not included:
        return []
    text = "You are brief and right."
    return [ContextBlock(slot="system", kind="instructions", name="instructions", text=text, reason="instructions")]


def documents() -> st.SearchStrategy[ContextBlock]:
    slots = st.sampled_from([("references", "reference", "referenced"), ("recall", "document", "recalled")])
    return st.builds(
        lambda slot, name, text, score: ContextBlock(
            slot=slot[0], kind=slot[1], reason=slot[2], name=name, text=text, score=score, is_required=False
        ),
        slots,
        st.uuids().map(str),
        st.text(max_size=300),
        st.none() | st.floats(0, 1),
    )


def try_assemble(case: tuple[ViewInput, dict]) -> Assembly | None:
    """None if the required content alone exceeds the window; the error must then name the largest items."""
    view_input, changes = case
    policy = make_policy(**changes)
    try:
        return assemble(view_input, policy, MESSAGE_COUNTERS[policy.wire_format])
    except ContextOverflow as error:
        overflow = error
    check_overflow(view_input, policy, overflow)
    return None


def check_overflow(view_input: ViewInput, policy: Policy, overflow: ContextOverflow) -> None:
    assert overflow.needed_tokens > overflow.available_tokens
    assert overflow.largest_items
    pinned = sum(MESSAGE_COUNTERS[policy.wire_format].render_entry(entry).tokens for entry in view_input.pinned)
    irreducible = pinned + 400 + 40 * len(view_input.pinned) + (900 if policy.wire_format == "messages" else 0)
    assert irreducible + _summary_tokens(view_input, policy.wire_format) > overflow.available_tokens


def _summary_tokens(view_input: ViewInput, provider: str) -> int:
    return MESSAGE_COUNTERS[provider].count(Message.user(view_input.compaction.raw)) if view_input.compaction else 0


@pytest.mark.no_cover  # Coverage would double the time.
@settings(max_examples=EXAMPLE_COUNT)
@given(cases())
def test_every_request_keeps_every_promise(case: tuple[ViewInput, dict]):
    view_input, changes = case
    assembly = try_assemble(case)
    if assembly is None:
        return
    manifest, request, policy = assembly.manifest, assembly.rendered, make_policy(**changes)
    wire_format, counter = (
        MESSAGE_COUNTERS[policy.wire_format].wire_format,
        MESSAGE_COUNTERS[policy.wire_format].token_counter,
    )
    payload = request.to_payload()
    # Never over budget, and the manifest has the tokens of the rendered request.
    assert request.tokens <= policy.max_input_tokens
    assert count_payload(wire_format, payload, counter) == request.tokens == manifest.total_tokens
    assert sum(row.tokens for row in manifest.included) + wire_format.request_overhead == manifest.total_tokens
    assert sum(slot.used for slot in manifest.slots) == manifest.total_tokens
    assert all(row.tokens >= 0 for row in manifest.decisions)
    # Valid for every provider.
    for provider in PROVIDERS:
        assert wire_format_for(provider).check(request.to_payload(provider)) == []
    json.dumps(payload)
    check_presence(view_input, assembly)
    check_decisions(view_input, assembly)
    # A second assembly is identical.
    again = assemble(view_input, policy, make_message_counter(policy.wire_format))
    assert again.rendered.digest == request.digest
    assert again.manifest == manifest
    check_plan(view_input, assembly)
    check_replay(view_input, assembly)


def check_presence(view_input: ViewInput, assembly: Assembly) -> None:
    """The newest turn and the pins are included verbatim or as excerpts, and messages are in order."""
    rendered_messages = assembly.rendered.messages
    rendered_seqs = [
        rendered.seq for rendered in rendered_messages if rendered.seq is not None and rendered.message.role != "tool"
    ]
    numbers = [seq for seq in rendered_seqs if view_input.compaction is None or seq != view_input.compaction.seq]
    assert numbers == sorted(set(numbers))
    question = drop_unsupported_parts(view_input.pending[0])
    rows = assembly.manifest.included
    limits = {row.slot: row.turn_excerpt_chars for row in rows if row.turn_excerpt_chars is not None}
    limit, pinned_limit = limits.get("newest"), limits.get("messages")
    assert rendered_messages[-1].message == (question if limit is None else excerpt_message(question, limit, seq=None))
    messages = [rendered.message for rendered in rendered_messages]
    for batch in group_entries(view_input.pinned, MESSAGE_COUNTERS[assembly.rendered.wire_format.name]):
        first = batch.messages[0]
        if pinned_limit is not None:
            first = first._replace(message=excerpt_message(first.message, pinned_limit, seq=first.seq))
        assert any(message.text.endswith(first.message.text) for message in messages)


def group_entries(entries: Sequence[Entry], message_counter: MessageCounter) -> tuple[MessageBatch, ...]:
    return group_batches(repair_tool_calls(message_counter.render_entries(entries), message_counter).messages)


def check_decisions(view_input: ViewInput, assembly: Assembly) -> None:
    """Every candidate has exactly one decision."""
    manifest = assembly.manifest
    named = Tally(row.name for row in manifest.decisions if row.name is not None)
    candidates = [block.name for block in view_input.blocks] + [tool.definition.name for tool in view_input.tools]
    candidates += [row.name for row in view_input.document_decisions]
    assert named == Tally(candidates)
    decided = Tally(
        seq
        for row in manifest.decisions
        if row.kind == "message" and row.span is not None
        for seq in range(row.span.first, row.span.last + 1)
    )
    first = view_input.history[0].seq if view_input.history else None
    covered = range(1, first) if first is not None else range(1, view_input.head + (view_input.compaction is None))
    if view_input.compaction is not None:
        covers = view_input.compaction.body.covers
        covered = range(covers.first, covers.last + 1)
    expected = {*covered, *(entry.seq for entry in view_input.history)}
    assert decided == Tally(expected)
    rendered_seqs = {rendered.seq for rendered in assembly.rendered.messages if rendered.seq is not None}
    decided_seqs = {
        seq
        for row in manifest.included
        if row.span is not None
        for seq in range(row.span.first, row.span.last + 1)
        if seq in rendered_seqs
    }
    assert rendered_seqs == decided_seqs


def check_plan(view_input: ViewInput, assembly: Assembly) -> None:
    """A plan covers complete batches before the newest turn, and exists only above the trigger."""
    plan, manifest = assembly.plan, assembly.manifest
    if plan is None:
        return
    assert manifest.full_history_tokens > manifest.trigger_tokens
    assert plan.covers is not None or plan.truncations or plan.cleared_results
    if plan.covers is None:
        return
    for batch in group_entries(view_input.history, make_message_counter("chat")):
        assert (batch.seqs[0] <= plan.covers.last) == (batch.seqs[-1] <= plan.covers.last)


class ViewInputStore:
    """What a replay reads from a store: the texts and entries of one view input, and its question once it is stored."""

    def __init__(self, view_input: ViewInput) -> None:
        texts = [block.text for block in view_input.blocks]
        texts += [tool.definition.canonical_json() for tool in view_input.tools]
        self._blobs = {hash_text(text): Blob("text/plain", text.encode()) for text in texts}
        self._entries = [
            *view_input.pinned,
            *(candidate.entry for candidate in view_input.recall_candidates),
            *view_input.history,
            *([view_input.compaction] if view_input.compaction is not None else []),
            *(make_entry(view_input.head + 1, message) for message in view_input.pending),
        ]

    async def get_blob(self, digest: str) -> Blob:
        return self._blobs[digest]

    async def read_range(self, conversation: str, *, branch: int, first: int, last: int) -> list[Entry]:
        return [entry for entry in self._entries if first <= entry.seq <= last]


def check_replay(view_input: ViewInput, assembly: Assembly) -> None:
    """The manifest, the log and the texts give the same request again."""
    recorded = replace(assembly, question_span=Span(first=view_input.head + 1, last=view_input.head + 1))
    replayed = asyncio.run(replay(ViewInputStore(view_input), recorded.manifest))
    assert replayed.mismatch is None
    assert replayed.rendered.stable_messages == assembly.rendered.stable_messages


def test_a_plan_brings_the_request_down_to_the_target():
    messages = [
        message for number in range(40) for message in (Message.user(f"{number} " * 50), Message.assistant("ok " * 50))
    ]
    policy = make_policy(window=4_000)
    for strategy, fewest in (("discard", 15), ("summarize", 5), ("hybrid", 12)):
        chosen = make_policy(window=4_000, strategy=strategy)
        first = assemble(
            make_view_input(make_entries(messages), Message.user("and now?")), chosen, MESSAGE_COUNTERS["chat"]
        )
        assert first.plan is not None
        assert first.plan.needs_summary == (strategy != "discard")
        recent = make_entries(messages)[first.plan.covers.last :]
        assert len(recent) >= fewest
        compaction = make_entry(81, Compaction(number=1, covers=first.plan.covers, summary="what was said"))
        second = assemble(
            make_view_input(recent, Message.user("and now?"), compaction=compaction), chosen, MESSAGE_COUNTERS["chat"]
        )
        assert second.plan is None
        assert second.manifest.total_tokens <= policy.target_tokens


def test_off_means_off():
    messages = [
        message for number in range(40) for message in (Message.user("why? " * 50), Message.assistant("so. " * 50))
    ]
    view_input = make_view_input(make_entries(messages), Message.user("and now?"))
    off = make_policy(window=200_000, context_management_enabled=False, context_threshold=0.001)
    assembly = assemble(view_input, off, MESSAGE_COUNTERS["chat"])
    assert assembly.plan is None
    assert not assembly.manifest.excluded
    small = make_policy(window=2_000, context_management_enabled=False)
    overflowing = assemble(view_input, small, MESSAGE_COUNTERS["chat"])
    assert overflowing.manifest.excluded
    with pytest.raises(ContextOverflow, match="message #"):
        overflowing.check_overflow()


def test_there_must_be_something_to_answer():
    for messages in ([], [Message.user("hello"), Message.assistant("hi")]):
        with pytest.raises(InvalidRequest, match="nothing to answer"):
            assemble(make_view_input(make_entries(messages), None), make_policy(), MESSAGE_COUNTERS["chat"])
    with pytest.raises(UnknownStrategy, match="hybrid"):
        assemble(make_view_input((), Message.user("x")), make_policy(strategy="guess"), MESSAGE_COUNTERS["chat"])


def test_a_huge_question_is_excerpted_and_says_so():
    question = Message.user("start " + "x y z " * 20_000 + " end")
    assembly = assemble(
        make_view_input((), question),
        make_policy(window=1_000, reserved_response_tokens=100),
        MESSAGE_COUNTERS["chat"],
    )
    [row] = assembly.manifest.included
    assert (row.reason, row.slot) == ("excerpted", "newest")
    text = assembly.rendered.to_payload()["messages"][-1]["content"]
    assert text.startswith("start x y z")
    assert text.endswith(" end")
    assert "characters left out" in text
    assert 700 < assembly.rendered.tokens <= 900


def test_a_change_of_model_recounts_what_is_seen():
    message_counter = make_message_counter("chat")
    counted = make_entries([Message.user("hello there")], message_counter=message_counter)
    assert make_message_counter("chat").render_entry(counted[0]).tokens == counted[0].tokens
    wrong = counted[0]._replace(tokens=999)
    assert make_message_counter("chat").render_entry(wrong).tokens == 999
    assert make_message_counter("messages").render_entry(wrong).tokens < 50


class TestSummaryCount:
    BODY = Compaction(number=1, covers=Span(first=1, last=2), summary="High water at noon. [#1]")

    def tokens(self, compaction: Entry) -> int:
        """Tokens of the summary in a request that contains it."""
        assembly = assemble(
            make_view_input((), Message.user("And now?"), compaction=compaction),
            make_policy(),
            make_message_counter("chat"),
        )
        [row] = [row for row in assembly.manifest.decisions if row.kind == "summary"]
        return row.tokens

    def test_it_is_counted_once_and_stored_with_it(self):
        message_counter = MESSAGE_COUNTERS["chat"]
        count = count_summary(self.BODY, message_counter)
        assert count is not None
        assert count.tokens == self.tokens(make_entry(3, self.BODY))
        assert self.tokens(make_entry(3, self.BODY)._replace(tokens=999, counter=message_counter.name)) == 999

    def test_it_is_recounted_for_another_model_and_after_a_purge(self):
        counted = self.tokens(make_entry(3, self.BODY))
        assert self.tokens(make_entry(3, self.BODY)._replace(tokens=999, counter="messages:estimate")) == counted
        purged = make_entry(3, self.BODY)._replace(tokens=999, counter="chat:o200k_base", purged_at=1)
        assert self.tokens(purged) == self.tokens(make_entry(3, purge_body(self.BODY)))

    def test_what_only_shortens_messages_has_no_summary(self):
        assert count_summary(Compaction(number=1, covers=None), MESSAGE_COUNTERS["chat"]) is None
