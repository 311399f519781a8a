"""Priorities over any history: a compaction never omits a message for one of a lower class, and stays at its target."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from view_builders import make_message_counter, make_policy, make_view_input

from infra.builders import make_entries, make_entry
from quire.errors import InvalidEntry
from quire.model import ActiveCompaction, BranchState, Compaction, Entry, Message, Priority, Span, apply_entry
from quire.model.messages import ToolCallPart
from quire.model.state import MAX_BRANCH_PRIORITIES
from quire.view.assembly import ViewAssembly, assemble
from quire.view.batches import MessageBatch
from quire.view.compaction_plan import CompactionPlan
from quire.view.inputs import ViewInput
from quire.view.strategies import HYBRID_PRIORITY_SHARES, classify_batch, classify_priority, spread_priorities

COUNTER = make_message_counter("chat")
CLASSES = ("critical", "important", "normal", "low")
QUESTION = Message.user("and now?")


def words(count: int) -> str:
    return "toll " * count


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A question with a reply, and perhaps a tool call with one or two results."""
    messages = [Message.user(words(draw(st.integers(1, 200))))]
    for number in range(draw(st.integers(0, 2))):
        ids = [f"c{number}{index}" for index in range(draw(st.integers(1, 2)))]
        messages.append(Message(role="assistant", parts=tuple(ToolCallPart(id=each, name="look") for each in ids)))
        messages += [Message.tool(each, words(draw(st.integers(1, 200)))) for each in ids]
    return [*messages, Message.assistant(words(draw(st.integers(1, 60))))]


@st.composite
def cases(draw: st.DrawFn) -> tuple[ViewInput, int]:
    """A history with priorities, perhaps with an earlier compaction that preserves some messages; and a window."""
    history = [message for turn in draw(st.lists(turns(), min_size=4, max_size=14)) for message in turn]
    entries = make_entries(history, message_counter=COUNTER)
    numbers = st.integers(1, len(entries))
    priorities = draw(st.dictionaries(numbers, st.integers(1, 10), min_size=1, max_size=len(entries)))
    pins = draw(st.frozensets(numbers, max_size=1))
    window = draw(st.sampled_from([1_000, 1_500, 2_000, 4_000]))
    starts = [entry.seq for entry in entries if entry.role == "user"]
    if draw(st.booleans()):
        return make_view_input(entries, QUESTION, priorities=priorities, pins=pins), window
    covered = draw(st.sampled_from(starts[1:3])) - 1
    high = {seq for seq, priority in spread_priorities(entries[:covered], priorities).items() if priority >= 6}
    compaction = Compaction(
        number=1, covers=Span(first=1, last=covered), summary="before", preserved=tuple(sorted(high)) or None
    )
    view_input = make_view_input(
        entries[covered:],
        QUESTION,
        compaction=make_entry(len(entries) + 1, compaction),
        pinned=tuple(entry for entry in entries[:covered] if entry.seq in high),
        priorities=priorities,
    )
    return view_input, window


def plan_next(view_input: ViewInput, window: int) -> tuple[ViewAssembly, CompactionPlan | None]:
    assembly = assemble(view_input, make_policy(window=window, reserved_response_tokens=100), COUNTER)
    return assembly, assembly.plan


def list_candidates(assembly: ViewAssembly, plan: CompactionPlan) -> list[MessageBatch]:
    """Batches that the compaction archives and that could stay whole, oldest first."""
    counted, covers = assembly.counted_input, plan.covers
    assert covers is not None
    return [
        batch
        for batch in (*counted.pinned, *counted.history)
        if batch.seqs[0] in covers and counted.pins.isdisjoint(batch.seqs) and plan.question not in batch.seqs
    ]


@given(case=cases())
@settings(max_examples=2 * settings.default.max_examples)
def test_a_higher_class_is_never_omitted_for_a_lower_one(case: tuple[ViewInput, int]):
    assembly, plan = plan_next(*case)
    if plan is None or plan.covers is None or not plan.needs_summary:
        return
    priorities, max_input = assembly.counted_input.priorities, assembly.budget.max_input_tokens
    candidates = list_candidates(assembly, plan)
    preserved = [batch for batch in candidates if batch.seqs[0] in plan.preserved]
    classes = {batch.seqs[0]: classify_batch(batch, priorities) for batch in candidates}
    assert sorted(seq for batch in preserved for seq in batch.seqs) == list(plan.preserved), "whole batches only"
    assert {classes[batch.seqs[0]] for batch in preserved} <= HYBRID_PRIORITY_SHARES.keys()
    for omitted in candidates:
        own = classes[omitted.seqs[0]]
        if omitted in preserved or own not in HYBRID_PRIORITY_SHARES:
            continue
        rank = CLASSES.index(own)
        share = sum(share for each, share in HYBRID_PRIORITY_SHARES.items() if CLASSES.index(each) >= rank)
        used = sum_tokens(batch for batch in preserved if classes[batch.seqs[0]] == own)
        lower = sum_tokens(batch for batch in preserved if CLASSES.index(classes[batch.seqs[0]]) > rank)
        fits_share = used + omitted.tokens <= int(share * max_input)
        assert not (fits_share and omitted.tokens <= lower), "the lower ones have the room that it needs"
        older = [each for each in preserved if classes[each.seqs[0]] == own and each.seqs[0] < omitted.seqs[0]]
        assert all(each.tokens < omitted.tokens for each in older), "the newest of a class first"


def sum_tokens(batches: Iterable[MessageBatch]) -> int:
    return sum(batch.tokens for batch in batches)


@given(case=cases())
def test_preserved_messages_do_not_exceed_the_target(case: tuple[ViewInput, int]):
    assembly, plan = plan_next(*case)
    if plan is None or plan.covers is None or not plan.preserved or not plan.needs_summary:
        return
    counted = assembly.counted_input
    pinned = sum_tokens(batch for batch in counted.history if not counted.pins.isdisjoint(batch.seqs))
    assert assembly.full_history_tokens - plan.freed_tokens <= plan.target_tokens + pinned
    planned = Compaction(number=2, covers=plan.covers, question=plan.question, preserved=plan.preserved)
    without = planned.model_copy(update={"preserved": None})
    preserved = sum_tokens(batch for batch in (*counted.pinned, *counted.history) if batch.seqs[0] in plan.preserved)
    assert assembly.count_after(planned) - assembly.count_after(without) == preserved


@given(case=cases())
def test_a_normal_priority_changes_nothing(case: tuple[ViewInput, int]):
    view_input, window = case
    if view_input.compaction is not None:
        return
    normal = dict.fromkeys(view_input.priorities, 5)
    plans = [plan_next(replace(view_input, priorities=each), window)[1] for each in ({}, normal)]
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("priority", "expected"), [(10, "critical"), (8, "critical"), (7, "important"), (6, "important"), (5, "normal"),
                               (3, "normal"), (2, "low"), (1, "low")],
)  # fmt: skip
def test_the_classes_of_a_priority(priority: int, expected: str):
    assert classify_priority(priority) == expected


def make_history(count: int) -> tuple[Entry, ...]:
    messages = [Message.user(words(100)) if index % 2 == 0 else Message.assistant("noted") for index in range(count)]
    return make_entries(messages, message_counter=COUNTER)


def test_low_messages_do_not_hold_the_cut_back():
    history = make_history(40)
    _, without = plan_next(make_view_input(history, QUESTION), 2_000)
    assert without is not None
    assert without.covers is not None
    first_after = without.covers.last + 1
    low = {first_after: 1, first_after + 1: 2}
    _, plan = plan_next(make_view_input(history, QUESTION, priorities=low), 2_000)
    assert plan is not None
    assert plan.covers == Span(first=1, last=first_after + 1)


def test_a_prioritized_tool_result_is_neither_cleared_nor_archived():
    call = Message(role="assistant", parts=(ToolCallPart(id="x", name="look"),))
    messages = [Message.user("look"), call, Message.tool("x", words(150)), Message.assistant("done")]
    later = [entry.message for entry in make_history(30)]
    entries = make_entries([*messages, *later], message_counter=COUNTER)
    _, plan = plan_next(make_view_input(entries, QUESTION, priorities={3: 8}), 2_000)
    assert plan is not None
    assert plan.preserved == (2, 3)


def apply_all(bodies: Sequence[Priority]) -> BranchState:
    def look_up(_: int) -> ActiveCompaction:
        raise AssertionError("nothing to look up")

    state = BranchState()
    for body in bodies:
        state = apply_entry(state, 10_000, body, compaction_at=look_up)
    return state


def test_the_state_holds_the_priorities_that_are_set():
    state = apply_all(
        [Priority(message=3, priority=9), Priority(message=2, priority=1), Priority(message=3, priority=7),
         Priority(message=2)]
    )  # fmt: skip
    assert state.priorities == (Priority(message=3, priority=7),)
    with pytest.raises(InvalidEntry):
        apply_all([Priority(message=10_000, priority=9)])
    full = [Priority(message=number, priority=9) for number in range(1, MAX_BRANCH_PRIORITIES + 1)]
    assert len(apply_all([*full, Priority(message=1, priority=2)]).priorities) == MAX_BRANCH_PRIORITIES
    with pytest.raises(InvalidEntry, match="at most 1,000 messages"):
        apply_all([*full, Priority(message=MAX_BRANCH_PRIORITIES + 1, priority=9)])


def test_a_system_message_of_the_application_stays_and_a_reminder_after_results_does_not():
    call = Message(role="assistant", parts=(ToolCallPart(id="x", name="look"),))
    messages = [Message.user("Begin."), Message.system("# Environment: /home/kay"), call, Message.tool("x", words(20))]
    reminder, later = Message.system("The task tools have not been used."), [each.message for each in make_history(40)]
    entries = make_entries([*messages, reminder, *later], message_counter=COUNTER)
    _, plan = plan_next(make_view_input(entries, QUESTION), 2_000)
    assert plan is not None
    assert plan.covers is not None
    assert plan.covers.last > 5
    assert plan.preserved == (2,)
