"""Turns of an agent of the OpenAI Agents SDK, against its scripted model."""

from collections.abc import Callable
from typing import Any

import scripted_turns as script
from agents import Agent, RunConfig, Runner, function_tool
from agents.models.openai_responses import Converter
from agents.testing import ModelCall, ScriptedModel, assistant_message, function_call

from quire.adapters.openai_agents import open_session


@function_tool
def read_tide_table(pier: int) -> str:
    """Reads the tide table of a pier."""
    return script.make_result(pier)


def make_agent(model: ScriptedModel, **fields: Any) -> Agent[Any]:
    return Agent(name="harbour", instructions=script.INSTRUCTIONS, tools=[read_tide_table], model=model, **fields)


def to_request(call: ModelCall) -> script.SentRequest:
    tools = Converter.convert_tools(call.tools, call.handoffs).tools
    payload = {"model": "gpt-4o", "instructions": call.system_instructions, "tools": tools, "input": call.input}
    return script.SentRequest("responses", payload)


async def run_turns(
    url: str, turns: range, *, on_turn: Callable[[int], None] = lambda _: None, streams: bool = False
) -> list[script.SentRequest]:
    model = ScriptedModel()
    async with open_session(script.CONVERSATION, url, **script.OPTIONS) as session:
        config = RunConfig(call_model_input_filter=session.filter_input, tracing_disabled=True)
        for turn in turns:
            call = function_call("read_tide_table", {"pier": turn}, call_id=script.make_call_id(turn))
            model.extend([[call], [assistant_message(script.make_answer(turn))]])
            options: dict[str, Any] = {"session": session, "run_config": config, "hooks": session.hooks}
            if streams:
                result: Any = Runner.run_streamed(make_agent(model), script.make_question(turn), **options)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(make_agent(model), script.make_question(turn), **options)
            assert result.final_output == script.make_answer(turn)
            on_turn(turn)
    return [to_request(call) for call in model.calls]
