"""One layout: the order of a request and of its manifest, and the stage that counts what it contains."""

from typing import get_args

import pytest
from view_builders import make_policy, make_view_input

from infra.builders import make_entries, make_entry
from quire.model import SLOTS, Compaction, Message, Span, TextPart, ToolCallPart, ToolDefinition
from quire.view.assembly import assemble
from quire.view.batches import MessageBatch
from quire.view.budget import allocate_budget
from quire.view.counted_input import count_input
from quire.view.inputs import ContextBlock, SelectedTool, ViewInput
from quire.view.layout import SECTIONS, MessageSection, RequestContents, RequestSection, lay_out, render
from quire.view.recalled_messages import RecallCandidate
from quire.view.rendered import MessageCounter
from quire.view.selection import select_content
from quire.view.strategies import get_strategy
from quire.wire import wire_format_for
from quire.wire.tokens import counter_for

TOOL = ToolDefinition(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
MESSAGE_SECTIONS: tuple[MessageSection, ...] = get_args(MessageSection)


class CountingTokenCounter:
    """A token counter that records how often it is called."""

    name, exact = "o200k_base", True

    def __init__(self) -> None:
        self.calls = 0

    def count(self, text: str) -> int:
        self.calls += 1
        return counter_for("gpt-4o").count(text)


def make_counter() -> MessageCounter:
    return MessageCounter(CountingTokenCounter(), wire_format_for("chat"))


def make_call(call_id: str) -> list[Message]:
    call = ToolCallPart(id=call_id, name="look", arguments="{}")
    return [Message(role="assistant", parts=(TextPart(text="Looking."), call)), Message.tool(call_id, "waves")]


def make_block(slot: str, kind: str, reason: str) -> ContextBlock:
    return ContextBlock(slot=slot, kind=kind, name=f"{slot} block", text=f"text of {slot}", reason=reason)


def make_full_input() -> ViewInput:
    """A view input with content for every section, and candidates that a request does not include."""
    entries = make_entries(
        [
            Message.user("The code is 0451."),
            Message.assistant("Noted."),
            Message.user("It rains."),
            Message.assistant("Take a coat."),
            Message.user("Look at the sea."),
            *make_call("a"),
            Message.user("And again."),
            *make_call("a"),
        ]
    )
    covers = Compaction(number=1, covers=Span(first=1, last=4), summary="A code was said.")
    return make_view_input(
        entries[4:],
        None,
        blocks=(
            make_block("recall", "document", "recalled"),
            make_block("references", "reference", "referenced"),
            make_block("memory", "memory", "memory"),
            make_block("system", "instructions", "instructions"),
        ),
        tools=(SelectedTool(TOOL),),
        compaction=make_entry(11, covers),
        pinned=entries[:1],
        pins=frozenset({1}),
        recall_candidates=(RecallCandidate(entries[2], 0.9),),
    )


def test_sections_come_in_one_order_however_they_are_given():
    message_counter = make_counter()
    batches = {
        section: [MessageBatch.from_messages(message_counter.render_data(section))]
        for section in reversed(MESSAGE_SECTIONS)
    }
    contents = RequestContents(system="Be brief.", tools=(TOOL,), batches=batches)
    request = lay_out(contents, message_counter, model="m")
    assert [rendered.message.text for rendered in request.messages] == [
        "memory", "references", "pinned", "summary", "history", "recall", "newest",
    ]  # fmt: skip
    assert request.stable_messages == 5


def test_every_section_has_a_place():
    literals = {name for part in get_args(RequestSection) for name in get_args(part) or (part,)}
    assert set(SECTIONS) == literals
    assert len(SECTIONS) == len(set(SECTIONS))
    slots = ["messages" if section == "history" else section for section in SECTIONS if section != "pinned"]
    assert tuple(slots) == SLOTS


def test_call_ids_are_unique_over_all_sections():
    assembly = assemble(make_full_input(), make_policy(), make_counter())
    calls = [rendered.call_ids for rendered in assembly.rendered.messages if rendered.call_ids]
    assert calls == [("a",), ("a-2",)]
    results = [result.call_id for each in assembly.rendered.messages for result in each.message.tool_results]
    assert results == ["a", "a-2"]


def test_a_manifest_lists_the_decisions_by_section():
    decisions = assemble(make_full_input(), make_policy(), make_counter()).manifest.decisions
    assert [(row.slot, row.reason, row.span and (row.span.first, row.span.last)) for row in decisions] == [
        ("system", "instructions", None),
        ("tools", "always", None),
        ("memory", "memory", None),
        ("references", "referenced", None),
        ("messages", "pinned", (1, 1)),
        ("summary", "summary", (11, 11)),
        ("messages", "archived", (2, 2)),
        ("messages", "archived", (4, 4)),
        ("recall", "recalled", None),
        ("recall", "recalled", (3, 3)),
        ("messages", "recent", (5, 7)),
        ("newest", "newest", (8, 10)),
    ]


def test_a_request_has_its_stable_content_first():
    request = assemble(make_full_input(), make_policy(), make_counter()).rendered
    kinds = [
        rendered.message.text.split(" ")[0] if rendered.seq is None else rendered.seq for rendered in request.messages
    ]
    assert kinds == [
        "<quire:memory", "<quire:reference", 1, 11, 5, 6, 7, "<quire:document", "<quire:recalled", 8, 9, 10,
    ]  # fmt: skip
    assert request.stable_messages == 7


@pytest.mark.parametrize("question", [None, Message.user("And now?")])
def test_the_later_stages_count_only_what_depends_on_the_selection(question: Message | None):
    message_counter, policy = make_counter(), make_policy()
    entries = make_entries([Message.user("Look."), *make_call("a"), Message.user("Look."), *make_call("b")])
    view_input = make_view_input(entries, question, blocks=(make_block("memory", "memory", "memory"),))
    counted_input = count_input(view_input, message_counter)
    token_counter = message_counter.token_counter
    assert isinstance(token_counter, CountingTokenCounter)
    calls = token_counter.calls
    assert calls > 0
    budget = allocate_budget(policy, get_strategy(policy.strategy).shares)
    selection = select_content(counted_input, budget, message_counter)
    request = render(counted_input, selection, message_counter, model=policy.model)
    assert len(request.messages) == 7 + (question is not None)
    assert token_counter.calls == calls
