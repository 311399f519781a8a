"""A LangChain agent whose requests fit the context window, while its state has every message."""

import os

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from quire.adapters.langchain import open_middleware

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")


@tool
def read_tide_table(harbour: str) -> str:
    """Reads the tide table of a harbour."""
    return f"{harbour}: high water at 06:12 and 18:40. " * 20


def main() -> None:
    with open_middleware(DATABASE_URL, model="gpt-4o", context_limit=1_500) as middleware:
        agent = create_agent(
            ChatOpenAI(model="gpt-4o"),
            [read_tide_table],
            system_prompt="Answer in one sentence.",
            middleware=[middleware],
            checkpointer=InMemorySaver(),
        )
        for day in range(1, 11):
            question = {"messages": [{"role": "user", "content": f"When is high water in Gullhaven on day {day}?"}]}
            state = agent.invoke(question, {"configurable": {"thread_id": "langchain-agent"}})
            print(state["messages"][-1].content)
        print(f"{len(state['messages'])} messages in the state")


if __name__ == "__main__":
    main()
