"""The slots of a request add up to the manifest's total and to a recount of the rendered request."""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from view_builders import make_policy

from infra.builders import make_entries, make_entry
from infra.sizes import IS_FULL_SIZE
from infra.strategies import histories
from payload_oracle import count_payload
from quire.errors import ContextOverflow
from quire.model import Compaction, Decision, Message, Span, ToolDefinition
from quire.model.entry_metadata import DocumentReference
from quire.view.assembly import assemble
from quire.view.inputs import ContextBlock, SelectedTool, ViewInput
from quire.view.recalled_messages import RecallCandidate
from quire.view.rendered import MessageCounter, inline_documents
from quire.wire import wire_format_for
from quire.wire.labels import label_text
from quire.wire.tokens import counter_for

REQUEST_COUNT = (3 if IS_FULL_SIZE else 1) * settings.default.max_examples
"""Generated requests for each wire format: 300 at full size."""

COUNTERS = {
    "chat": MessageCounter(counter_for("gpt-4o"), wire_format_for("chat", model="gpt-4o")),
    "responses": MessageCounter(counter_for("gpt-4o"), wire_format_for("responses", model="gpt-4o")),
    "messages": MessageCounter(counter_for("claude-sonnet-4"), wire_format_for("messages")),
}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=400)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
BLOCK_SOURCES = (
    ("system", "rule", "always"),
    ("memory", "memory", "memory"),
    ("references", "reference", "manual"),
    ("recall", "reference", "agent"),
)


def tools() -> st.SearchStrategy[ToolDefinition]:
    properties = st.dictionaries(NAMES, st.fixed_dictionaries({"type": st.just("string"), "description": TEXTS}))
    return st.builds(
        lambda name, description, properties: ToolDefinition(
            name=name, description=description, parameters={"type": "object", "properties": properties}
        ),
        NAMES,
        TEXTS,
        properties,
    )


@st.composite
def blocks(draw: st.DrawFn) -> ContextBlock:
    slot, kind, reason = draw(st.sampled_from(BLOCK_SOURCES))
    is_required = reason != "agent"
    return ContextBlock(
        slot=slot, kind=kind, name=draw(NAMES), text=draw(TEXTS), reason=reason, score=0.5, is_required=is_required
    )


@st.composite
def questions(draw: st.DrawFn, counter: MessageCounter) -> tuple[Message, tuple[Decision, ...]]:
    """A question by a named speaker that contains a document and lists another one."""
    question = Message.user(draw(TEXTS), name=draw(st.none() | NAMES))
    text = draw(st.none() | TEXTS)
    if text is None:
        return question, ()
    injected = DocumentReference(link="[[a]]", path="a.md", blob=text, injected=True)
    listed = DocumentReference(link="[[b]]", path="b.md", summary=draw(TEXTS))
    document = f"\n\n{label_text('document', text, name='a.md', link='[[a]]')}"
    tokens = counter.token_counter.count(document)
    row = Decision(
        slot="newest", kind="document", included=True, reason="referenced", tokens=tokens, name="a.md", blob=text
    )
    other = row.model_copy(update={"included": False, "reason": "listed", "name": "b.md", "blob": None})
    return inline_documents(question, [injected, listed], lambda blob: blob), (row, other)


@st.composite
def view_inputs(draw: st.DrawFn, counter: MessageCounter) -> ViewInput:
    entries = make_entries(draw(histories()), message_counter=counter if draw(st.booleans()) else None)
    compaction, archived = None, 0
    if entries and draw(st.booleans()):
        archived = draw(st.integers(1, len(entries)))
        body = Compaction(number=1, covers=Span(first=1, last=archived), summary=draw(TEXTS))
        compaction = make_entry(len(entries) + 1, body)
    recalled = [entry for entry in entries[:archived] if draw(st.booleans())]
    question, document_decisions = draw(questions(counter))
    return ViewInput(
        conversation="c",
        branch=0,
        head=len(entries) + 1,
        blocks=tuple(draw(st.lists(blocks(), max_size=6))),
        tools=tuple(map(SelectedTool, draw(st.lists(tools(), max_size=4, unique_by=lambda tool: tool.name)))),
        compaction=compaction,
        history=entries[archived:],
        pins=draw(st.frozensets(st.integers(1, 10), max_size=2)),
        pending=(question,),
        document_decisions=document_decisions,
        recall_candidates=tuple(RecallCandidate(entry, 0.5, None) for entry in recalled),
    )


@pytest.mark.no_cover  # Coverage would double the time.
@pytest.mark.parametrize("provider", COUNTERS)
@settings(max_examples=REQUEST_COUNT)
@given(data=st.data())
def test_slots_add_up_to_the_total_and_to_a_recount_of_the_request(provider: str, data: st.DataObject):
    counter = COUNTERS[provider]
    view_input = data.draw(view_inputs(counter))
    policy = make_policy(wire_format=provider, window=data.draw(st.sampled_from([2_048, 8_192, 200_000])))
    try:
        assembly = assemble(view_input, policy, counter)
    except ContextOverflow:
        event("required content exceeds the window")
        return
    manifest = assembly.manifest
    recount = count_payload(counter.wire_format, assembly.rendered.to_payload(), counter.token_counter)
    used = {usage.slot: usage.used for usage in manifest.slots}
    assert sum(used.values()) == manifest.total_tokens == recount
    rows = {slot: sum(row.tokens for row in manifest.included if row.slot == slot) for slot in used}
    rows["newest"] += counter.wire_format.request_overhead
    assert used == rows
    assert all(row.tokens >= 0 for row in manifest.decisions)
    assert manifest.exact is (provider != "messages")
