"""The promises of the view, over any history: within budget, valid, whole, stable, explained."""

import json
from collections import Counter as Tally

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import ContextOverflow, InvalidRequest, UnknownStrategy
from quire.model import Compaction, Entry, Message, Policy, Span, ToolDefinition
from quire.testing.histories import histories, questions
from quire.view.assemble import Assembly, assemble
from quire.view.batches import bind
from quire.view.excerpts import excerpt
from quire.view.gather import summary_tokens
from quire.view.leaves import fitting
from quire.view.material import Block, Material, Tool
from quire.view.recalled import Candidate
from quire.view.shapes import shape_for
from support import entries, entry, material, meter_for, policy

THOUSANDS = 20 * settings.default.max_examples
METERS = {provider: meter_for(provider) for provider in ("openai", "anthropic")}
TOOL = ToolDefinition(name="read", description="Reads.", parameters={"type": "object", "properties": {}})


@st.composite
def cases(draw: st.DrawFn) -> tuple[Material, dict]:
    """A history, maybe compacted, with pins, documents and tools; a question; a policy."""
    said = draw(histories())
    stored = entries(said)
    compaction, pinned, recalled, first = None, (), (), 0
    if stored and draw(st.booleans()):
        first = draw(st.integers(1, len(stored)))
        summary = draw(st.none() | st.text(max_size=200))
        covering = Compaction(number=1, covers=Span(first=1, last=first), summary=summary)
        compaction = entry(len(stored) + 1, covering)
        pinned = tuple(sorted(draw(st.sets(st.sampled_from(stored[:first]), max_size=2)), key=lambda each: each.seq))
        archived = [each for each in stored[:first] if each not in pinned]
        recalled = draw(candidates(archived)) if archived else ()
    blocks = draw(st.lists(documents(), max_size=3))
    pins = draw(st.frozensets(st.integers(1, max(1, len(stored))), max_size=2))
    whole = Material(
        conversation="c",
        branch=0,
        head=len(stored) + (compaction is not None),
        blocks=(*instructions(draw(st.booleans())), *blocks),
        tools=(Tool(TOOL),) if draw(st.booleans()) else (),
        compaction=compaction,
        pinned=pinned,
        history=stored[first:],
        pins=pins | {each.seq for each in pinned},
        pending=(draw(questions()),),
        recalled=tuple(recalled),
    )
    window = draw(st.sampled_from([512, 700, 1_024, 2_048, 8_192, 32_000, 200_000]))
    changes = {
        "provider": draw(st.sampled_from(["openai", "anthropic"])),
        "strategy": draw(st.sampled_from(["discard", "summarize", "hybrid"])),
        "window": window,
        "reserved_response_tokens": draw(st.integers(0, window // 4)),
    }
    return whole, changes


def candidates(archived: list[Entry]) -> st.SearchStrategy[list[Candidate]]:
    pieces = st.none() | st.tuples(st.tuples(st.integers(0, 5), st.integers(6, 20)))
    found = st.builds(Candidate, st.sampled_from(archived), st.floats(0, 1), pieces)
    return st.lists(found, max_size=4, unique_by=lambda candidate: candidate.entry.seq)


def instructions(wanted: bool) -> list[Block]:
    if not wanted:
        return []
    text = "You are brief and right."
    return [Block(slot="system", what="instructions", name="instructions", text=text, reason="instructions")]


def documents() -> st.SearchStrategy[Block]:
    slots = st.sampled_from([("references", "reference", "referenced"), ("recall", "document", "recalled")])
    return st.builds(
        lambda slot, name, text, score: Block(
            slot=slot[0], what=slot[1], reason=slot[2], name=name, text=text, score=score, required=False
        ),
        slots,
        st.uuids().map(str),
        st.text(max_size=300),
        st.none() | st.floats(0, 1),
    )


def assembled(case: tuple[Material, dict]) -> Assembly | None:
    """None where even what cannot be left out exceeds the window; the error then names the largest items."""
    whole, changes = case
    rules = policy(**changes)
    try:
        return assemble(whole, rules, METERS[rules.provider])
    except ContextOverflow as error:
        overflow = error
    check_overflow(whole, rules, overflow)
    return None


def check_overflow(whole: Material, rules: Policy, overflow: ContextOverflow) -> None:
    assert overflow.needed > overflow.room
    assert overflow.largest
    pinned = sum(METERS[rules.provider].entry(each).tokens for each in whole.pinned)
    irreducible = pinned + 400 + 40 * len(whole.pinned) + (900 if rules.provider == "anthropic" else 0)
    assert irreducible + _summary_tokens(whole, rules.provider) > overflow.room


def _summary_tokens(whole: Material, provider: str) -> int:
    return METERS[provider].count(Message.user(whole.compaction.raw)) if whole.compaction else 0


@pytest.mark.no_cover  # Which would take as long again.
@settings(max_examples=THOUSANDS)
@given(cases())
def test_every_request_keeps_every_promise(case: tuple[Material, dict]):
    whole, changes = case
    assembly = assembled(case)
    if assembly is None:
        return
    manifest, pages, rules = assembly.manifest, assembly.pages, policy(**changes)
    shape, counter = METERS[rules.provider].shape, METERS[rules.provider].counter
    payload = pages.payload()
    # Never over budget, and the manifest's tokens are those of what was rendered.
    assert pages.tokens <= rules.room
    assert shape.recount(payload, counter) == pages.tokens == manifest.total
    assert sum(row.tokens for row in manifest.included) + shape.overhead == manifest.total
    # Valid for its provider, and for the other.
    for provider in ("openai", "anthropic"):
        assert shape_for(provider).check(pages.payload(provider)) == []
    json.dumps(payload)
    check_presence(whole, assembly)
    check_decisions(whole, assembly)
    # A second assembly is identical.
    again = assemble(whole, rules, meter_for(rules.provider))
    assert again.pages.digest == pages.digest
    assert again.manifest == manifest
    check_plan(whole, assembly)


def check_presence(whole: Material, assembly: Assembly) -> None:
    """The newest turn and the pins are there, word for word; what is there is in order."""
    leaves = assembly.pages.leaves
    shown = [leaf.seq for leaf in leaves if leaf.seq is not None and leaf.message.role != "tool"]
    numbers = [seq for seq in shown if whole.compaction is None or seq != whole.compaction.seq]
    assert numbers == sorted(set(numbers))
    asked = fitting(whole.pending[0])
    limit = next((row.excerpt for row in assembly.manifest.included if row.excerpt is not None), None)
    assert leaves[-1].message == (asked if limit is None else excerpt(asked, limit, number=None))
    texts = [leaf.message for leaf in leaves]
    for each in bind(
        [METERS[assembly.pages.shape.name].entry(one) for one in whole.pinned], meter_for("openai")
    ).batches:
        assert each.leaves[0].message.text in [message.text for message in texts]


def check_decisions(whole: Material, assembly: Assembly) -> None:
    """Every candidate has exactly one decision."""
    manifest = assembly.manifest
    named = Tally(row.name for row in manifest.decisions if row.name is not None)
    candidates = [block.name for block in whole.blocks] + [tool.definition.name for tool in whole.tools]
    assert named == Tally(candidates)
    decided = Tally(
        seq
        for row in manifest.decisions
        if row.what == "message" and row.span is not None
        for seq in range(row.span.first, row.span.last + 1)
    )
    first = whole.history[0].seq if whole.history else None
    covered = range(1, first) if first is not None else range(1, whole.head + (whole.compaction is None))
    if whole.compaction is not None:
        covers = whole.compaction.body.covers
        covered = range(covers.first, covers.last + 1)
    expected = {*covered, *(each.seq for each in whole.history)}
    assert decided == Tally(expected)
    shown = {leaf.seq for leaf in assembly.pages.leaves if leaf.seq is not None}
    told = {
        seq
        for row in manifest.included
        if row.span is not None
        for seq in range(row.span.first, row.span.last + 1)
        if seq in shown
    }
    assert shown == told


def check_plan(whole: Material, assembly: Assembly) -> None:
    """A plan covers whole batches before the newest turn, and only when the meter is over the trigger."""
    plan, manifest = assembly.plan, assembly.manifest
    if plan is None:
        return
    assert manifest.wanted > manifest.trigger
    assert plan.covers is not None or plan.shortened
    if plan.covers is None:
        return
    bound = bind([meter_for("openai").entry(each) for each in whole.history], meter_for("openai"))
    for batch in bound.batches:
        assert (batch.seqs[0] <= plan.covers.last) == (batch.seqs[-1] <= plan.covers.last)


def test_a_plan_brings_the_request_down_to_the_target():
    said = [
        message for number in range(40) for message in (Message.user(f"{number} " * 50), Message.assistant("ok " * 50))
    ]
    rules = policy(window=4_000)
    for strategy, fewest in (("discard", 15), ("summarize", 5), ("hybrid", 12)):
        chosen = policy(window=4_000, strategy=strategy)
        first = assemble(material(entries(said), Message.user("and now?")), chosen, METERS["openai"])
        assert first.plan is not None
        assert first.plan.summarize == (strategy != "discard")
        kept = entries(said)[first.plan.covers.last :]
        assert len(kept) >= fewest
        compaction = entry(81, Compaction(number=1, covers=first.plan.covers, summary="what was said"))
        second = assemble(material(kept, Message.user("and now?"), compaction=compaction), chosen, METERS["openai"])
        assert second.plan is None
        assert second.manifest.total <= rules.target


def test_off_means_off():
    said = [message for number in range(40) for message in (Message.user("why? " * 50), Message.assistant("so. " * 50))]
    whole = material(entries(said), Message.user("and now?"))
    off = policy(window=200_000, context_management_enabled=False, context_threshold=0.001)
    assembly = assemble(whole, off, METERS["openai"])
    assert assembly.plan is None
    assert not assembly.manifest.left_out
    with pytest.raises(ContextOverflow, match="message #"):
        assemble(whole, policy(window=2_000, context_management_enabled=False), METERS["openai"])


def test_there_must_be_something_to_answer():
    for said in ([], [Message.user("hello"), Message.assistant("hi")]):
        with pytest.raises(InvalidRequest, match="nothing to answer"):
            assemble(material(entries(said), None), policy(), METERS["openai"])
    with pytest.raises(UnknownStrategy, match="hybrid"):
        assemble(material((), Message.user("x")), policy(strategy="guess"), METERS["openai"])


def test_a_huge_question_is_excerpted_and_says_so():
    asked = Message.user("start " + "x y z " * 20_000 + " end")
    assembly = assemble(material((), asked), policy(window=1_000, reserved_response_tokens=100), METERS["openai"])
    [row] = assembly.manifest.included
    assert (row.reason, row.slot) == ("excerpted", "newest")
    text = assembly.pages.payload()["messages"][-1]["content"]
    assert text.startswith("start x y z")
    assert text.endswith(" end")
    assert "characters left out" in text
    assert 700 < assembly.pages.tokens <= 900


def test_a_change_of_model_recounts_what_is_seen():
    meter = meter_for("openai")
    counted = entries([Message.user("hello there")], meter=meter)
    assert meter_for("openai").entry(counted[0]).tokens == counted[0].tokens
    wrong = counted[0]._replace(tokens=999)
    assert meter_for("openai").entry(wrong).tokens == 999
    assert meter_for("anthropic").entry(wrong).tokens < 50


class TestTheCountOfASummary:
    BODY = Compaction(number=1, covers=Span(first=1, last=2), summary="High water at noon. [#1]")

    def tokens(self, compaction: Entry) -> int:
        """What the summary weighs in a request that carries it."""
        made = assemble(material((), Message.user("And now?"), compaction=compaction), policy(), meter_for("openai"))
        [row] = [row for row in made.manifest.decisions if row.what == "summary"]
        return row.tokens

    def test_it_is_counted_once_and_kept_beside_it(self):
        meter = METERS["openai"]
        kept = summary_tokens(self.BODY, meter)
        assert kept is not None
        assert kept.tokens == self.tokens(entry(3, self.BODY))
        assert self.tokens(entry(3, self.BODY)._replace(tokens=999, counter=meter.name)) == 999

    def test_it_is_counted_anew_for_another_model_and_after_a_purge(self):
        counted = self.tokens(entry(3, self.BODY))
        assert self.tokens(entry(3, self.BODY)._replace(tokens=999, counter="anthropic:estimate")) == counted
        assert (
            self.tokens(entry(3, self.BODY)._replace(tokens=999, counter="openai:o200k_base", purged_at=1)) == counted
        )

    def test_what_only_shortens_messages_has_no_summary(self):
        assert summary_tokens(Compaction(number=1, covers=None), METERS["openai"]) is None
