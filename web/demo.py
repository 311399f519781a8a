"""A conversation worth looking at, and a server that shows it: python web/demo.py [--port 8300] [--place FOLDER]

The model follows a script, so nothing leaves this machine. Tests of the page and the pictures in the docs use it too.
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quire.agent.runners import FunctionRunner
from quire.engine import Conversation
from quire.llm import Chunk, Prompt
from quire.log import DEFAULT_TENANT
from quire.model import Message
from quire.server.app import create_app
from quire.server.local import address, new_token
from quire.server.running import bind, run
from quire.server.serving import Serving, serving
from quire.server.turns import Place
from quire.settings import Settings
from quire.testing.scripted import ScriptedModel, Step
from story import AGENT, NOTES, SAID, SUMMARY, TITLE, TOOLS, call_of


class DemoModel(ScriptedModel):
    """Answers the questions above as written, and any other with a few words; word by word, at the pace of a reader."""

    def __init__(self, *, pause: float = 0.0) -> None:
        super().__init__(_reply, name="demo-1", repeat=True)
        self.pause = pause

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(prompt):
            await asyncio.sleep(self.pause)
            yield chunk


def _reply(prompt: Prompt) -> Step:
    place = max(index for index, message in enumerate(prompt.messages) if message.role == "user")
    asked = prompt.messages[place].text
    steps = next((steps for question, steps in SAID if question in asked), None)
    made = sum(message.role == "assistant" for message in prompt.messages[place + 1 :])
    return steps[made] if steps is not None and made < len(steps) else _improvised(prompt, asked)


def _improvised(prompt: Prompt, asked: str) -> Message | str:
    """A reply for whatever is asked live; some words make it call a tool."""
    last = prompt.messages[-1]
    if last.role == "tool":
        return f"The tool says: {last.tool_results[-1].text[:200]}"
    if "order" in asked.lower():
        return call_of(f"o{len(prompt.messages)}", "order_timber", '{"wood": "elm", "length": 9}')
    return (
        f"You asked: *{asked.strip().splitlines()[-1][:200] if asked.strip() else 'nothing'}*\n\n"
        "This model follows a script, so it has little to say of its own, but it says it **word by word**, as others "
        "do:\n\n- the gate first,\n- then the silt,\n- then the wheel.\n\n"
        "Look at the *context* of this reply to see what it was sent."
    )


def write_vault(place: Path) -> Path:
    vault = place / "vault"
    for name, text in NOTES.items():
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text(text, encoding="utf-8")
    return vault


def settings_for(place: Path, **changes: Any) -> Settings:
    given = {
        "model": "gpt-4o",
        "context_limit": 4_000,
        "reserved_response_tokens": 500,
        "context_background_threshold": None,
        "recent_messages_to_keep": 4,
        "context_tools": True,
        "vault": str(write_vault(place)),
        **changes,
    }
    return Settings.model_validate(given)


@asynccontextmanager
async def demo(
    place: Path, *, url: str | None = None, model: DemoModel | None = None, **options: Any
) -> AsyncGenerator[Serving]:
    """A serving with the agent, the vault and the model of the demo; nothing in it yet."""
    scripted = model or DemoModel()
    given: dict[str, Any] = {
        "agent": AGENT.offering(*(each.offered for each in TOOLS)),
        "model": lambda _: scripted,
        "summarizer": ScriptedModel(SUMMARY, repeat=True, name="demo-1"),
        "embedder": _embedder(),
        "local": True,
        **options,
    }
    settings = given.pop("settings", None) or settings_for(place)
    async with serving(url or f"sqlite:///{place}/quire.db", settings, **given) as shared:
        shared.turns.runners = (FunctionRunner(TOOLS),)
        yield shared


def _embedder() -> Any:
    from quire.llm.embeddings import local_embedder

    return local_embedder()


async def fill(shared: Serving) -> str:
    """Has the scripted conversation; gives its id."""
    engine = shared.engine(DEFAULT_TENANT)
    for title in ("Leaflet for visitors", "Tide tables of next year", "Letter to the trust"):
        other = await engine.conversation((await engine.store.create_conversation(title=title)).id)
        await other.append("What should it say?", Message.assistant("Little, and that in large type."))
    made = await engine.store.create_conversation(title=TITLE)
    conversation = await engine.conversation(made.id)
    if not await engine.store.memories("keeper"):
        await engine.store.remember(
            "keeper", "Rosa has the keys of the lodge and opens up on Saturdays.", source="user"
        )
    for number, (question, _) in enumerate(SAID):
        await ask(shared, conversation, question)
        if number == 1:
            await conversation.add("units")
        if number == 4:
            await conversation.pin(await _question(conversation))
            await conversation.compact()
    await conversation.compact(instructions="Keep the work days.")
    return made.id


async def _question(conversation: Conversation) -> int:
    return next(entry.seq for entry in await conversation.messages() if entry.role == "user")


async def ask(shared: Serving, conversation: Conversation, question: str) -> None:
    place = Place(DEFAULT_TENANT, conversation.id, conversation.branch)
    running = shared.turns.start(place, conversation, question, model=shared.model())
    async for _ in running.events():
        pass
    # The last event is told a moment before the turn is taken off the list.
    while shared.turns.at(place) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def main(port: int, place: Path, token: str) -> None:
    model = DemoModel()
    async with demo(place, model=model) as shared:
        made = await fill(shared)
        model.pause = 0.03
        with bind("127.0.0.1", port) as listening:
            print(f"{address('127.0.0.1', listening.getsockname()[1], token)}#/c/{made}", flush=True)  # noqa: T201
            await run(create_app(shared, token=token), listening, grace=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8300)
    parser.add_argument("--place", type=Path)
    parser.add_argument("--token", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(given.port, given.place or Path(scratch), given.token or new_token()))
