"""An agent of the OpenAI Agents SDK whose session is a conversation of Quire."""

import asyncio
import os

from agents import Agent, RunConfig, Runner, function_tool

from quire.adapters.openai_agents import open_session

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")


@function_tool
def read_tide_table(harbour: str) -> str:
    """Reads the tide table of a harbour."""
    return f"{harbour}: high water at 06:12 and 18:40. " * 20


async def main() -> None:
    agent = Agent(name="harbour", instructions="Answer in one sentence.", tools=[read_tide_table], model="gpt-4o")
    async with open_session("openai-agents-agent", DATABASE_URL, model="gpt-4o", context_limit=1_500) as session:
        config = RunConfig(call_model_input_filter=session.filter_input, tracing_disabled=True)
        for day in range(1, 11):
            question = f"When is high water in Gullhaven on day {day}?"
            result = await Runner.run(agent, question, session=session, run_config=config, hooks=session.hooks)
            print(result.final_output)
        print(f"{len(await session.get_items())} items in the session")


if __name__ == "__main__":
    asyncio.run(main())
