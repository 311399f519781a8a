"""Turns of an agent of LangChain, against a scripted model."""

from collections.abc import Callable, Sequence
from typing import Any

import scripted_turns as script
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from quire.adapters.langchain import QuireMiddleware, open_middleware


@tool
def read_tide_table(pier: int) -> str:
    """Reads the tide table of a pier."""
    return script.make_result(pier)


class ScriptedChatModel(GenericFakeChatModel):
    """LangChain's fake model, which takes tools and records each call."""

    bound_tools: list[dict[str, Any]] = Field(default_factory=list)
    requests: list[script.SentRequest] = Field(default_factory=list)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        self.bound_tools = [convert_to_openai_tool(each) for each in tools]
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        payload = {"model": "gpt-4o", "messages": convert_to_openai_messages(messages), "tools": self.bound_tools}
        self.requests.append(script.SentRequest("chat", payload))
        return super()._generate(messages, *args, **kwargs)


def script_turn(turn: int) -> list[AIMessage]:
    call = {"name": "read_tide_table", "args": {"pier": turn}, "id": script.make_call_id(turn)}
    return [AIMessage("", tool_calls=[call]), AIMessage(script.make_answer(turn))]


def make_model(replies: Sequence[AIMessage]) -> ScriptedChatModel:
    return ScriptedChatModel(messages=iter(replies))


def make_agent(model: ScriptedChatModel, middleware: QuireMiddleware, **options: Any) -> Any:
    return create_agent(model, [read_tide_table], system_prompt=script.INSTRUCTIONS, middleware=[middleware], **options)


async def run_turns(
    url: str, turns: range, *, on_turn: Callable[[int], None] = lambda _: None, is_async: bool = True
) -> list[script.SentRequest]:
    model = make_model([reply for turn in turns for reply in script_turn(turn)])
    with open_middleware(url, **script.OPTIONS) as middleware:
        agent = make_agent(model, middleware, checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": script.CONVERSATION}}
        for turn in turns:
            question = {"messages": [{"role": "user", "content": script.make_question(turn)}]}
            result = await agent.ainvoke(question, config) if is_async else agent.invoke(question, config)
            assert result["messages"][-1].text == script.make_answer(turn)
            # The state has the whole thread: the middleware removes and adds nothing.
            assert len(result["messages"]) == 4 * (turn - turns.start + 1)
            on_turn(turn)
    return model.requests
