"""Turns of an agent of Pydantic AI, against its function model."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import scripted_turns as script
from pydantic_ai import Agent
from pydantic_ai import messages as pai
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from quire.adapters.pydantic_ai import QuireCapability, convert_model_message, open_capability
from quire.model import ToolDefinition
from quire.wire.chat.render import OpenAIChatFormat


class ScriptedModel:
    """The replies of one run after another, and the requests as the model got them."""

    def __init__(self) -> None:
        self.replies: list[list[pai.ModelResponsePart]] = []
        self.requests: list[script.SentRequest] = []

    def add_turn(self, turn: int) -> None:
        call = pai.ToolCallPart("read_tide_table", {"pier": turn}, script.make_call_id(turn))
        self.replies += [[call], [pai.TextPart(script.make_answer(turn))]]

    def reply(self, messages: list[pai.ModelMessage], info: AgentInfo) -> pai.ModelResponse:
        self.requests.append(to_request(messages, info))
        return pai.ModelResponse(parts=self.replies.pop(0))

    async def stream(self, messages: list[pai.ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for part in self.reply(messages, info).parts:
            if isinstance(part, pai.TextPart):
                yield part.content
            elif isinstance(part, pai.ToolCallPart):
                yield {0: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def to_request(messages: list[pai.ModelMessage], info: AgentInfo) -> script.SentRequest:
    wire_format = OpenAIChatFormat()
    converted = [each for message in messages for each in convert_model_message(message)]
    tools = [
        ToolDefinition(name=tool.name, description=tool.description or "", parameters=tool.parameters_json_schema)
        for tool in (*info.function_tools, *info.output_tools)
    ]
    payload = wire_format.build_payload(
        model="gpt-4o",
        system=info.instructions,
        tools=[wire_format.render_tool(tool) for tool in tools],
        messages=[wire for each in converted if each.message for wire in wire_format.render_message(each.message)],
        max_tokens=None,
    )
    return script.SentRequest("chat", payload)


def make_agent(model: ScriptedModel, capability: QuireCapability, **options: Any) -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(
        FunctionModel(model.reply, stream_function=model.stream),
        instructions=script.INSTRUCTIONS,
        capabilities=[capability],
        **options,
    )

    @agent.tool_plain
    def read_tide_table(pier: int) -> str:
        """Reads the tide table of a pier."""
        return script.make_result(pier)

    return agent


async def run_turns(
    url: str,
    turns: range,
    *,
    on_turn: Callable[[int], None] = lambda _: None,
    passes_history: bool = True,
    streams: bool = False,
) -> list[script.SentRequest]:
    model, history = ScriptedModel(), list[pai.ModelMessage]()
    async with open_capability(url, **script.OPTIONS) as capability:
        agent = make_agent(model, capability)
        for turn in turns:
            model.add_turn(turn)
            options: dict[str, Any] = {"conversation_id": script.CONVERSATION}
            if passes_history:
                options["message_history"] = history
            if streams:
                async with agent.run_stream(script.make_question(turn), **options) as result:
                    output = await result.get_output()
            else:
                result = await agent.run(script.make_question(turn), **options)
                output = result.output
            assert output == script.make_answer(turn)
            history = result.all_messages()
            on_turn(turn)
        # The run's own history is complete: the capability changes only what the model gets.
        assert len(history) == 4 * (len(turns) if passes_history else 1)
    return model.requests
