"""An agent of each framework with a model server on loopback, with Quire and without.

Run as a program, it asks the questions of turns FIRST to LAST until it is killed, and prints each answer as JSON:
`local_model_agents.py FRAMEWORK DATABASE_URL MODEL_URL FIRST LAST`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

FRAMEWORKS = ("openai_agents", "langchain", "pydantic_ai")
CONVERSATION = "harbour"
INSTRUCTIONS = "You are the harbour office."
WINDOW_TOKENS = 1_024
RESERVED_TOKENS = 64
MAX_REPLY_TOKENS = 6
MODEL = "smollm2"

AskAgent = Callable[[str], Awaitable[str]]
"""Runs one turn of an agent and returns its answer."""


def read_tide_table(pier: int) -> str:
    """Reads the tide table of a pier."""
    return f"Pier {pier}: high water {pier % 24:02}:{pier * 7 % 60:02} and {(pier + 12) % 24:02}:{pier * 7 % 60:02}"


def make_question(turn: int) -> str:
    return f"High water at pier {turn}?"


def choose_call(question: str) -> dict[str, Any] | None:
    """The call that answers a question about a pier."""
    _, found, rest = question.partition("at pier ")
    if not found:
        return None
    return {"name": "read_tide_table", "arguments": json.dumps({"pier": int(rest.partition("?")[0])})}


def open_agent(
    framework: str,
    model_url: str,
    *,
    database_url: str | None,
    max_tokens: int = MAX_REPLY_TOKENS,
    window_tokens: int = WINDOW_TOKENS,
) -> Any:
    """Opens an agent as an `AskAgent`. Without a database, the framework holds the history in memory, all of it."""
    opener = {"openai_agents": _open_openai_agents, "langchain": _open_langchain, "pydantic_ai": _open_pydantic_ai}
    return opener[framework](model_url, database_url, max_tokens, get_quire_options(window_tokens))


def get_quire_options(window_tokens: int = WINDOW_TOKENS) -> dict[str, Any]:
    return {"model": MODEL, "context_limit": window_tokens, "reserved_response_tokens": RESERVED_TOKENS}


@asynccontextmanager
async def _open_openai_agents(
    model_url: str, database_url: str | None, max_tokens: int, options: dict[str, Any]
) -> AsyncGenerator[AskAgent]:
    from agents import Agent, ModelSettings, RunConfig, Runner, SQLiteSession, function_tool
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    from quire.adapters.openai_agents import open_session

    async with AsyncOpenAI(base_url=model_url, api_key="none", max_retries=0, timeout=600) as client:
        agent: Agent[Any] = Agent(
            name="harbour",
            instructions=INSTRUCTIONS,
            tools=[function_tool(read_tide_table)],
            model=OpenAIChatCompletionsModel(MODEL, client),
            model_settings=ModelSettings(max_tokens=max_tokens, temperature=0),
        )

        async def ask(question: str, **run_options: Any) -> str:
            return (await Runner.run(agent, question, **run_options)).final_output

        if database_url is None:
            session, config = SQLiteSession(CONVERSATION), RunConfig(tracing_disabled=True)
            yield lambda question: ask(question, session=session, run_config=config)
            session.close()
            return
        async with open_session(CONVERSATION, database_url, **options) as stored:
            config = RunConfig(call_model_input_filter=stored.filter_input, tracing_disabled=True)
            yield lambda question: ask(question, session=stored, run_config=config, hooks=stored.hooks)


@asynccontextmanager
async def _open_langchain(
    model_url: str, database_url: str | None, max_tokens: int, options: dict[str, Any]
) -> AsyncGenerator[AskAgent]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver

    from quire.adapters.langchain import QuireMiddleware
    from quire.engine import open_engine

    model = ChatOpenAI(
        model=MODEL,
        base_url=model_url,
        api_key="none",
        max_tokens=max_tokens,  # type: ignore[call-arg]
        temperature=0,
        max_retries=0,
        timeout=600,
    )
    config: Any = {"configurable": {"thread_id": CONVERSATION}}

    def make_ask(middleware: list[Any]) -> AskAgent:
        agent: Any = create_agent(
            model, [read_tide_table], system_prompt=INSTRUCTIONS, middleware=middleware, checkpointer=InMemorySaver()
        )

        async def ask(question: str) -> str:
            state = await agent.ainvoke({"messages": [{"role": "user", "content": question}]}, config)
            return state["messages"][-1].text

        return ask

    if database_url is None:
        yield make_ask([])
        return
    async with open_engine(database_url, **options) as engine:
        yield make_ask([QuireMiddleware(engine)])


@asynccontextmanager
async def _open_pydantic_ai(
    model_url: str, database_url: str | None, max_tokens: int, options: dict[str, Any]
) -> AsyncGenerator[AskAgent]:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent, ModelSettings
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from quire.adapters.pydantic_ai import open_capability

    async with AsyncOpenAI(base_url=model_url, api_key="none", max_retries=0, timeout=600) as client:

        def make_agent(capabilities: list[Any]) -> Agent[Any, str]:
            return Agent(
                OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client)),
                instructions=INSTRUCTIONS,
                tools=[read_tide_table],
                model_settings=ModelSettings(max_tokens=max_tokens, temperature=0),
                capabilities=capabilities,
            )

        if database_url is None:
            agent, history = make_agent([]), list[Any]()

            async def ask_with_history(question: str) -> str:
                result = await agent.run(question, message_history=history)
                history[:] = result.all_messages()
                return result.output

            yield ask_with_history
            return
        async with open_capability(database_url, **options) as capability:
            agent = make_agent([capability])

            async def ask(question: str) -> str:
                return (await agent.run(question, conversation_id=CONVERSATION)).output

            yield ask


async def _ask_until_killed(framework: str, database_url: str, model_url: str, turns: range) -> None:
    async with open_agent(framework, model_url, database_url=database_url) as ask:
        for turn in turns:
            print(json.dumps({"turn": turn, "answer": await ask(make_question(turn))}), flush=True)


if __name__ == "__main__":
    _, name, database, model, first, last = sys.argv
    asyncio.run(_ask_until_killed(name, database, model, range(int(first), int(last) + 1)))
