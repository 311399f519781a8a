"""`docs/life-of-a-request.md` names the functions that a request really calls, in their order."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FrameType
from typing import Any

import pytest

from quire.agent.function_tools import FunctionToolRunner, tool
from quire.agent.turn import run_turn
from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.request import Document
from quire.model import Message, ToolCallPart
from quire.model.events import ReplyRecorded, TurnEnded, TurnEvent
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

DOC_PAGE = Path(__file__).parents[2] / "docs/life-of-a-request.md"
STEP = re.compile(r"^(\d+)\. `(quire\.[\w.]+)`", re.MULTILINE)
QUESTION = "What did I say of the quay at Coldharbour? See [[Mills]]."


@tool
def soundings(place: str) -> str:
    """The depth of the water at a place."""
    return f"{place}: four fathoms"


def read_documented_steps(title: str) -> list[str]:
    """The functions that a section of the page names; their numbers must run from 1."""
    sections = re.split(r"^## ", DOC_PAGE.read_text(), flags=re.MULTILINE)
    [text] = [each for each in sections if each.startswith(f"{title}\n")]
    steps = STEP.findall(text)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    return [name for _, name in steps]


def find_code_objects(names: Sequence[str]) -> dict[CodeType, str]:
    """The code object of each name; an unknown name raises."""
    return {resolve_name(name).__code__: name for name in names}


@contextmanager
def trace_calls(names: Mapping[CodeType, str]) -> Iterator[list[str]]:
    """Records each call of the named functions; resuming a coroutine does not count as a call."""
    calls: list[str] = []
    entered: dict[int, FrameType] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names and id(frame) not in entered:
            entered[id(frame)] = frame
            calls.append(names[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.fixture(autouse=True)
def _stay_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile sees one thread, and large requests are assembled in another."""
    monkeypatch.setattr("quire.concurrency.worker_threads.MAX_EVENT_LOOP_BYTES", 10**9)


async def make_long_conversation(store: SqlStore, vault: Path) -> Conversation:
    """A conversation that exceeds its window; its first message answers the question of these tests."""
    (vault / "Mills.md").write_text("# Mills\n\nA mill grinds grain.\n")
    settings = Settings(model="gpt-4o", context_limit=4_000)
    engine = Engine(
        store, EngineConfig.create(settings, instructions="Be brief.", tools=[soundings.definition], vault=vault)
    )
    conversation = await engine.conversation("c")
    await conversation.append("The quay at Coldharbour floods in March.", Message.assistant("Noted."))
    for number in range(120):
        await conversation.append(f"Day {number}: {'rain and wind ' * 12}", Message.assistant(f"Noted, {number}."))
    return conversation


async def run_question(conversation: Conversation) -> list[TurnEvent]:
    call = ToolCallPart(id="1", name="soundings", arguments='{"place": "Coldharbour"}')
    model = ScriptedModel(Message(role="assistant", parts=(call,)), "It floods in March.")
    runner = FunctionToolRunner([soundings])
    return [event async for event in run_turn(conversation, QUESTION, model=model, runners=[runner])]


async def test_a_turn_goes_through_the_functions_that_the_page_names_in_that_order(store: SqlStore, tmp_path: Path):
    conversation, path = await make_long_conversation(store, tmp_path), read_documented_steps("The path")
    with trace_calls(find_code_objects(path)) as calls:
        events = await run_question(conversation)
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].reason == "answered"
    assert list(dict.fromkeys(calls)) == path


async def test_after_its_tools_a_turn_continues_as_the_page_says(store: SqlStore, tmp_path: Path):
    conversation, path = await make_long_conversation(store, tmp_path), read_documented_steps("The path")
    with trace_calls(find_code_objects(path)) as calls:
        await run_question(conversation)
    assert calls.count(path[14]) == 1
    again = [step for number, step in enumerate(path, 1) if number not in (1, 6, 7, 8, 9, 10, 15)]
    assert calls[calls.index(path[14]) + 1 :] == again


async def test_compacting_is_followed_by_another_count_of_what_is_left(store: SqlStore, tmp_path: Path):
    conversation, path = await make_long_conversation(store, tmp_path), read_documented_steps("The path")
    with trace_calls(find_code_objects(path)) as calls:
        events = await run_question(conversation)
    after = calls.index(path[8]) + 1
    assert calls[after : after + 5] == [path[2], path[4], path[9], path[10], path[11]]
    replies = [event.entry.seq for event in events if isinstance(event, ReplyRecorded)]
    [first, _] = [await conversation.manifest(reply) for reply in replies]
    reasons = {row.reason for row in first.included}
    assert {"summary", "recalled", "referenced", "newest"} <= reasons


async def test_assembling_goes_through_the_functions_that_the_page_names_in_that_order(store: SqlStore, tmp_path: Path):
    conversation, inside = await make_long_conversation(store, tmp_path), read_documented_steps("Inside assemble")
    assemble = read_documented_steps("The path")[4]
    with trace_calls(find_code_objects([assemble, *inside])) as calls:
        await conversation.prepare(QUESTION)
    # Budgets are also allocated elsewhere; compare only the calls from the start of each assembly.
    starts = [place for place, name in enumerate(calls) if name == assemble]
    assert len(starts) == 3
    for start in starts:
        assert calls[start + 1 : start + 1 + len(inside)] == inside


async def test_a_request_is_ranked_and_laid_out_once_whatever_it_takes_to_fit(store: SqlStore, tmp_path: Path):
    """A compaction, a document that is trimmed and one that the question names change only what is counted."""
    conversation = await make_long_conversation(store, tmp_path)
    once = ["quire.engine.recall.Recall.find_candidates", "quire.view.layout.render", "quire.view.layout.lay_out"]
    read = "quire.engine.runtime.EngineRuntime.read_window"
    with trace_calls(find_code_objects([*once, read])) as calls:
        request = await conversation.prepare(QUESTION, documents=[Document(name="Almanac", text="tide " * 6_000)])
    assert len(request.compactions) == 1
    assert [calls.count(name) for name in once] == [1, 1, 1]
    assert calls.count(read) == 1 + len(request.compactions)


async def test_recording_a_reply_builds_nothing_that_prepares_requests(store: SqlStore, tmp_path: Path):
    conversation = await make_long_conversation(store, tmp_path)
    request = await conversation.prepare(QUESTION)
    parts = ["recall.Recall", "compactor.Compactor", "assembler.Assembler", "builtin_tools.BuiltinTools"]
    with trace_calls(find_code_objects([f"quire.engine.{part}.__init__" for part in parts])) as calls:
        await Conversation(conversation.engine, "c").record("It floods in March.", request=request)
    assert calls == []
