"""`quire context timeline`: the picture of all requests in the terminal, with the numbers of the ledger."""

import asyncio
from random import Random

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json

from quire.engine import Engine, EngineConfig
from quire.llm import Reply
from quire.model import Compaction, Draft, Message, Span, Usage
from quire.model.entry_bodies import IMPORTED_STRATEGY
from quire.settings import Settings
from quire.store import SqlStore


@pytest.fixture
def long_conversation(home: CliHome) -> str:
    async def talk() -> None:
        settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 1_500, "reserved_response_tokens": 200})
        random = Random(3)
        async with SqlStore.open(home.url) as store:
            conversation = await Engine(store, EngineConfig.create(settings)).conversation("long")
            for number in range(24):
                words = " ".join(random.choices(["gate", "silt", "wheel", "sluice", "heron"], k=40))
                request = await conversation.prepare(f"Question {number} on the {words}")
                usage = Usage(input_tokens=request.manifest.total_tokens, output_tokens=9, cache_read_tokens=100)
                await conversation.record(Reply(Message.assistant(words), usage, "stop"), request=request)

    asyncio.run(talk())
    return "long"


def test_the_terminal_draws_slots_lines_cuts_and_bands_without_colors(long_conversation: str):
    output = invoke_cli("context", "timeline", long_conversation).stdout
    lines = output.splitlines()
    document = run_json("context", "timeline", long_conversation)
    compactions = [each for each in document["events"] if each["kind"] == "compaction"]
    assert lines[0].startswith(f"24 requests in 24 turns, {len(compactions)} compactions")
    [window] = [line for line in lines if line.endswith(" window")]
    assert window.split()[0] == "1,500"
    [trigger] = [line for line in lines if line.endswith(" compacts")]
    assert trigger.split()[0] == f"{document['limits'][0]['trigger_tokens']:,}"
    assert sum(line.count("✂") for line in lines) == len(compactions)
    assert any(line.split()[:1] == ["cached"] for line in lines)
    assert "H Messages" in output
    assert f"#{compactions[-1]['seq']}" in output
    assert f"{compactions[-1]['freed_tokens']:,}" in output


def test_an_imported_conversation_is_drawn_from_its_usage(home: CliHome):
    async def store_import() -> None:
        async with SqlStore.open(home.url) as store:
            await store.create_conversation("imported", title="<script>alert(1)</script>")
            for tokens in (50_000, 90_000, 12_000):
                usage = Usage(input_tokens=tokens, output_tokens=5, cache_read_tokens=tokens // 2)
                reply = Draft(body=Message.assistant("Done."), usage=usage)
                await store.append("imported", Message.user("Go on."), reply)
                if tokens == 90_000:
                    covers = Span(first=1, last=4)
                    await store.append(
                        "imported", Compaction(number=1, covers=covers, summary="s", strategy=IMPORTED_STRATEGY)
                    )

    asyncio.run(store_import())
    output = invoke_cli("context", "timeline", "imported").stdout
    assert "1 compaction (1 by the agent)" in output
    assert "? sent, parts unknown" in output


def test_a_conversation_without_requests_says_so(home: CliHome):
    asyncio.run(create_empty(home.url))
    assert invoke_cli("context", "timeline", "empty").stdout.startswith("No request is recorded")


async def create_empty(url: str) -> None:
    async with SqlStore.open(url) as store:
        await store.create_conversation("empty")
