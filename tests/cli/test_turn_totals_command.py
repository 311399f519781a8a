"""`quire context show --reply` has the totals of a turn of several steps, and the documents that it read."""

import asyncio
from pathlib import Path

from cli_fixtures import CliHome, invoke_cli, run_json

from quire.agent.turn import run_turn
from quire.engine import open_engine
from quire.model import Message, ToolCallPart
from quire.testing.scripted_model import ScriptedModel


def read(path: str) -> Message:
    call = ToolCallPart(id=path, name="read_document", arguments=f'{{"path": "{path}"}}')
    return Message(role="assistant", parts=(call,))


async def play_turn(url: str, vault: Path) -> int:
    for name in ("Mill.md", "Wheel.md"):
        (vault / name).write_text(f"# {name}\n\nA text.\n")
    async with open_engine(url, vault=vault, model="gpt-4o", context_tools=True) as engine:
        conversation = await engine.conversation("mills")
        async for _ in run_turn(
            conversation, "Compare.", model=ScriptedModel(read("Mill.md"), read("Wheel.md"), "So.")
        ):
            pass
        return (await conversation.messages())[-1].seq


def test_the_totals_of_a_turn_are_printed_with_its_answer(home: CliHome, tmp_path: Path):
    reply = asyncio.run(play_turn(home.url, tmp_path))
    entry = run_json("context", "show", "mills", "--reply", str(reply))["entry"]
    assert entry["turn"]["steps"] == 3
    assert [each["path"] for each in entry["references"]] == ["Mill.md", "Wheel.md"]
    printed = " ".join(invoke_cli("context", "show", "mills", "--reply", str(reply)).stdout.split())
    assert f"The turn that #{reply} ends: 3 steps, {entry['turn']['usage']['input_tokens']:,} input" in printed
    assert "Documents: Mill.md, Wheel.md" in printed
    first = run_json("context", "show", "mills", "--reply", "2")["entry"]
    assert first["turn"] is None
