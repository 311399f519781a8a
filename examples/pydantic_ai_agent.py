"""A Pydantic AI agent with Quire as a capability: the history is in the log, and every request fits."""

import asyncio
import os

from pydantic_ai import Agent

from quire.adapters.pydantic_ai import open_capability

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")


def read_tide_table(harbour: str) -> str:
    """Reads the tide table of a harbour."""
    return f"{harbour}: high water at 06:12 and 18:40. " * 20


async def main() -> None:
    async with open_capability(DATABASE_URL, model="gpt-4o", context_limit=1_500) as quire:
        agent = Agent(
            "openai:gpt-4o", instructions="Answer in one sentence.", tools=[read_tide_table], capabilities=[quire]
        )
        for day in range(1, 11):
            question = f"When is high water in Gullhaven on day {day}?"
            result = await agent.run(question, conversation_id="pydantic-ai-agent")
            print(result.output)
        conversation = await quire.engine.conversation("pydantic-ai-agent")
        print(f"{len(await conversation.messages())} messages in the conversation")


if __name__ == "__main__":
    asyncio.run(main())
