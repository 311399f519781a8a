"""Steps of imported conversations: what each reply's request sent, without a manifest that says so."""

import pytest

from quire.backtest import ConversationSelection, combine_variants, run_backtest
from quire.backtest.recording import open_recording
from quire.backtest.selection import SelectedConversation
from quire.engine import Engine, EngineConfig
from quire.model import Message, ToolCallPart
from quire.settings import Settings
from quire.store import SqlStore

CALL = Message(role="assistant", parts=(ToolCallPart(id="a", name="read", arguments="{}"),))
RESULT = Message.tool("a", "text")
SYSTEM = Message.system("reminder")


async def list_steps(store: SqlStore, *messages: Message) -> list[tuple[list[int], list[int], int, list[int], bool]]:
    """For each step the numbers of its entries: before, pending, the reply, after it; and whether it starts a turn."""
    await store.create_conversation("c")
    await store.append("c", *messages)
    recording = await open_recording(store, "c", 0)
    return [
        (
            [each.seq for each in step.before],
            [each.seq for each in step.pending],
            step.reply.seq,
            [each.seq for each in step.after],
            step.starts_turn,
        )
        for step in [step async for step in recording.steps()]
    ]


USER, REPLY = Message.user("question"), Message.assistant("answer")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((USER, REPLY, USER, REPLY, USER), [([], [1], 2, [], True), ([], [3], 4, [], True)]),
        ((USER, CALL, RESULT, REPLY), [([], [1], 2, [], True), ([3], [], 4, [], False)]),
        ((REPLY, USER, USER, REPLY, REPLY), [([1, 2], [3], 4, [5], True)]),
        ((USER, SYSTEM, CALL, RESULT, SYSTEM, REPLY), [([2], [1], 3, [], True), ([4], [], 6, [5], False)]),
        ((SYSTEM, REPLY), []),
        ((), []),
    ],
    ids=["chat", "tool call", "greeting, two questions, two replies", "system messages", "no question", "empty"],
)
async def test_a_step_has_what_its_request_sent(store: SqlStore, messages: tuple[Message, ...], expected: object):
    assert await list_steps(store, *messages) == expected


async def test_every_step_can_be_simulated(store: SqlStore):
    engine = Engine(store, EngineConfig.create(Settings.model_validate({"model": "gpt-4o", "context_limit": 4_000})))
    for conversation, messages in {"a": (USER, SYSTEM, CALL, RESULT, SYSTEM, REPLY), "b": (USER,)}.items():
        await store.create_conversation(conversation)
        await store.append(conversation, *messages)
    selection = ConversationSelection(conversations=tuple(map(SelectedConversation, ("a", "b", "missing"))))
    report = await run_backtest(engine, combine_variants(["hybrid"]), selection)
    [variant] = report.variants
    assert (report.conversations, report.skipped) == (1, 2)
    assert (variant.failed_requests, variant.requests.numerator, variant.recorded_requests) == (0, 2, 0)
