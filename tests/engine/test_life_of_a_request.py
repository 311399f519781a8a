"""The page on the life of a request names the functions that a request really goes through, in their order."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FrameType
from typing import Any

from quire.agent.functions import tool
from quire.agent.loop import turn
from quire.agent.runners import FunctionRunner
from quire.engine import Conversation, Engine
from quire.log import SqlStore
from quire.model import Message, ToolCallPart
from quire.model.turns import ReplyKept, TurnEnded, TurnEvent
from quire.settings import Settings
from quire.testing.scripted import ScriptedModel

PAGE = Path(__file__).parents[2] / "docs/life-of-a-request.md"
STEP = re.compile(r"^(\d+)\. `(quire\.[\w.]+)`", re.MULTILINE)
QUESTION = "What did I say of the quay at Coldharbour? See [[Mills]]."


@tool
def soundings(place: str) -> str:
    """The depth of the water at a place."""
    return f"{place}: four fathoms"


def steps(title: str) -> list[str]:
    """The functions that a section of the page names, numbered from one."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    [text] = [each for each in sections if each.startswith(f"{title}\n")]
    found = STEP.findall(text)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [name for _, name in found]


def codes(names: Sequence[str]) -> dict[CodeType, str]:
    """Each name's code; a name that there is not is an error here."""
    return {resolve_name(name).__code__: name for name in names}


@contextmanager
def traced(names: Mapping[CodeType, str]) -> Iterator[list[str]]:
    """The named functions, each time that one is entered; that a coroutine goes on is no new call of it."""
    calls: list[str] = []
    entered: dict[int, FrameType] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names and id(frame) not in entered:
            entered[id(frame)] = frame
            calls.append(names[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


async def long_conversation(store: SqlStore, vault: Path) -> Conversation:
    """It has outgrown its window, and what its next question is about was said at its beginning."""
    (vault / "Mills.md").write_text("# Mills\n\nA mill grinds grain.\n")
    settings = Settings(model="gpt-4o", context_limit=4_000)
    engine = Engine(store, settings=settings, instructions="Be brief.", tools=[soundings.definition], vault=vault)
    conversation = await engine.conversation("c")
    await conversation.append("The quay at Coldharbour floods in March.", Message.assistant("Noted."))
    for number in range(120):
        await conversation.append(f"Day {number}: {'rain and wind ' * 12}", Message.assistant(f"Noted, {number}."))
    return conversation


async def whole_turn(conversation: Conversation) -> list[TurnEvent]:
    call = ToolCallPart(id="1", name="soundings", arguments='{"place": "Coldharbour"}')
    model = ScriptedModel(Message(role="assistant", parts=(call,)), "It floods in March.")
    runner = FunctionRunner([soundings])
    return [event async for event in turn(conversation, QUESTION, model=model, runners=[runner])]


async def test_a_turn_goes_through_the_functions_that_the_page_names_in_that_order(store: SqlStore, tmp_path: Path):
    conversation, path = await long_conversation(store, tmp_path), steps("The path")
    with traced(codes(path)) as calls:
        told = await whole_turn(conversation)
    assert isinstance(told[-1], TurnEnded)
    assert told[-1].reason == "answered"
    assert list(dict.fromkeys(calls)) == path


async def test_after_its_tools_a_turn_goes_on_as_the_page_says(store: SqlStore, tmp_path: Path):
    conversation, path = await long_conversation(store, tmp_path), steps("The path")
    with traced(codes(path)) as calls:
        await whole_turn(conversation)
    assert calls.count(path[13]) == 1
    again = [step for number, step in enumerate(path, 1) if number not in (1, 7, 8, 9, 10, 14)]
    assert calls[calls.index(path[13]) + 1 :] == again


async def test_compacting_is_followed_by_another_assembly_of_what_is_left(store: SqlStore, tmp_path: Path):
    conversation, path = await long_conversation(store, tmp_path), steps("The path")
    with traced(codes(path)) as calls:
        told = await whole_turn(conversation)
    after = calls.index(path[8]) + 1
    assert calls[after : after + 4] == [path[2], path[4], path[5], path[9]]
    replies = [event.entry.seq for event in told if isinstance(event, ReplyKept)]
    [first, _] = [await conversation.manifest(reply) for reply in replies]
    reasons = {row.reason for row in first.included}
    assert {"summary", "recalled", "referenced", "newest"} <= reasons


async def test_assembling_goes_through_the_functions_that_the_page_names_in_that_order(store: SqlStore, tmp_path: Path):
    conversation, inside = await long_conversation(store, tmp_path), steps("Inside assemble")
    assemble = steps("The path")[5]
    with traced(codes([assemble, *inside])) as calls:
        await conversation.prepare(QUESTION)
    # The share of a slot is asked for elsewhere too; here it counts from where assembling begins.
    starts = [place for place, name in enumerate(calls) if name == assemble]
    assert len(starts) == 3
    for start in starts:
        assert calls[start + 1 : start + 1 + len(inside)] == inside
