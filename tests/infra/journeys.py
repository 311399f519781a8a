"""Conversations that outgrow a small window, whose replies cite early messages: data for backtests."""

from quire.engine import Engine
from quire.model import Message

WINDOW_TOKENS = 3_000
"""A window that the conversations pass several times."""
ROAD = "The road was dry, the weather held, and we met other carts at noon. " * 4


async def create_journeys(engine: Engine, count: int, *, turns: int = 30) -> None:
    """Diaries of different lengths; every sixth answer cites the beginning of its own."""
    for number in range(count):
        conversation = await engine.conversation(f"journey-{number}")
        await engine.store.rename_conversation(conversation.id, f"Journey {number + 1}")
        [first, _] = await conversation.append(f"Day 1: {ROAD}", Message.assistant("Noted."))
        for day in range(2, turns + 3 * number + 1):
            cited = f" The inn was the one of the first day [#{first.seq}]." if day % 6 == 0 else ""
            answer = f"Noted: day {day} of the journey, twelve miles.{cited}"
            await conversation.append(f"Day {day}: {ROAD}", Message.assistant(answer))
