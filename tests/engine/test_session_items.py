"""Rules, references and tools in requests: always, added by the user, or selected for a message; and their record."""

from pathlib import Path

import pytest

from quire.engine import Engine, EngineConfig
from quire.errors import InvalidRequest
from quire.llm.embeddings import Embedder, load_local_embedder
from quire.model import Manifest, Message, ToolCallPart, ToolDefinition
from quire.model.agents import Agent, Reference, Rule, ToolServer
from quire.settings import Settings
from quire.store import SqlStore

RULE_A = Rule(name="Rule A", text="Answer in the user's language.", include="always")
RULE_B = Rule(name="Rule B", text="Show code before prose.", include="manual")
RULE_C = Rule(
    name="Rule C",
    description="How users authenticate: sign in, sessions and tokens.",
    text="Authenticate with a short-lived token. Never put a password into a URL.",
    include="agent",
)
REFERENCE_X = Reference(name="Reference X", text="The service has three parts.", include="always")
REFERENCE_Y = Reference(
    name="Reference Y",
    description="Error handling: which errors there are, what to retry and what to report.",
    text="Errors carry a code. Retry those that say so; report the others.",
    include="agent",
)
FLOW = Agent(
    name="flow",
    instructions="You help with the service.",
    rules=(RULE_A, RULE_B, RULE_C),
    references=(REFERENCE_X, REFERENCE_Y),
)


def make_engine(store: SqlStore, agent: Agent, embedder: Embedder | None = None, **changes: object) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 16_000, **changes})
    return Engine(store, EngineConfig.create(settings, agent=agent, embedder=embedder))


def included_items(manifest: Manifest) -> list[tuple[str, str]]:
    """The rules, references and tools of a request, and why each was included."""
    kinds = ("rule", "reference", "tool")
    return sorted((row.name or "", row.reason) for row in manifest.included if row.kind in kinds)


def score_of(manifest: Manifest, name: str) -> float:
    return next(row.score or 0.0 for row in manifest.decisions if row.name == name)


@pytest.mark.parametrize("by", ["words", "meaning"])
async def test_the_flow_of_a_session_turn_by_turn_and_from_its_manifests(store: SqlStore, by: str):
    engine = make_engine(store, FLOW, load_local_embedder() if by == "meaning" else None)
    conversation = await engine.conversation("c")
    assert [(each.item.name, each.include) for each in await conversation.items()] == [
        ("Reference X", "always"),
        ("Rule A", "always"),
    ]
    await conversation.add_item("Rule B")
    session = [("Reference X", "always"), ("Rule A", "always"), ("Rule B", "manual")]
    assert sorted((each.item.name, each.include) for each in await conversation.items()) == session

    first = await conversation.prepare("How do I authenticate?")
    assert included_items(first.manifest) == sorted([*session, ("Rule C", "agent")])
    assert score_of(first.manifest, "Rule C") > 0.5 > 0.35 > score_of(first.manifest, "Reference Y")
    first_reply = await conversation.record("With a token.", request=first)

    second = await conversation.prepare("What's the error handling?")
    assert included_items(second.manifest) == sorted([*session, ("Reference Y", "agent")])
    assert score_of(second.manifest, "Reference Y") > 0.5 > 0.35 > score_of(second.manifest, "Rule C")
    second_reply = await conversation.record("Errors carry a code.", request=second)

    # The same from the store, by an engine without the agent.
    later = await Engine(store, EngineConfig.create(Settings(model="gpt-4o"))).conversation("c")
    for request, reply in ((first, first_reply), (second, second_reply)):
        stored = await later.manifest(reply.seq)
        assert included_items(stored) == included_items(request.manifest)
        assert [row.score for row in stored.decisions] == [row.score for row in request.manifest.decisions]
        replayed = await later.replay(reply.seq)
        assert replayed.matches
        assert replayed.rendered is not None
        assert replayed.rendered.to_payload() == request.to_chat()
    [excluded] = [row for row in (await later.manifest(second_reply.seq)).excluded if row.name == "Rule C"]
    assert (excluded.reason, excluded.score) == ("below_score", score_of(second.manifest, "Rule C"))
    assert excluded.min_score == Settings().selection_min_score


async def test_each_item_is_in_its_slot(store: SqlStore):
    conversation = await make_engine(store, FLOW).conversation("c")
    await conversation.add_item("Rule B")
    payload = (await conversation.prepare("How do I authenticate?")).to_chat()
    system, *others = payload["messages"]
    assert (
        system["content"] == "You help with the service.\n\nAnswer in the user's language.\n\nShow code before prose."
    )
    texts = [message["content"] for message in others]
    assert [text.split(" ")[0] for text in texts] == ["<quire:reference", "<quire:rule", "How"]
    assert "The service has three parts." in texts[0]
    assert "Authenticate with a short-lived token." in texts[1]


async def test_removed_items_stay_out_and_names_are_checked(store: SqlStore):
    engine = make_engine(store, FLOW)
    conversation = await engine.conversation("c")
    await conversation.remove_item("Rule A")
    again = await engine.conversation("c")
    assert [each.item.name for each in await again.items()] == ["Reference X"]
    request = await again.prepare("Hello")
    [row] = [row for row in request.manifest.excluded if row.name == "Rule A"]
    assert row.reason == "removed"
    with pytest.raises(InvalidRequest, match="'Rule Z' is not an item; choose one of: reference Reference X"):
        await again.add_item("Rule Z")
    with pytest.raises(InvalidRequest, match="'Rule A' is not an item"):
        await again.remove_item("Rule A")


async def test_every_item_of_the_agent_that_is_not_included_says_why(store: SqlStore):
    disabled = Rule(name="Rule D", text="Off.", include="manual", enabled=False)
    agent = FLOW.model_copy(update={"rules": (*FLOW.rules, disabled)})
    conversation = await make_engine(store, agent).conversation("c")
    await conversation.add_item("Reference Y")
    await conversation.remove_item("Reference Y")

    def explain(manifest: Manifest) -> dict[str | None, str]:
        return {row.name: row.reason for row in manifest.excluded if row.kind in ("rule", "reference")}

    expected = {"Rule B": "not_added", "Rule C": "below_score", "Rule D": "disabled"}
    assert explain((await conversation.prepare("Hello")).manifest) == {**expected, "Reference Y": "below_score"}
    # Without a question nothing can match: a removed item says that it was removed.
    assert explain(await conversation.preview()) == {**expected, "Reference Y": "removed"}
    await conversation.remove_item("Rule A")
    await conversation.add_item("Rule B")
    await conversation.remove_item("Rule B")
    reply = await conversation.record("Hi.", request=await conversation.prepare("Hello"))
    recorded = explain(await conversation.manifest(reply.seq))
    assert (recorded["Rule A"], recorded["Rule B"]) == ("removed", "removed")
    await conversation.add_item("Rule A")
    assert ("Rule A", "manual") in included_items((await conversation.prepare("Hello")).manifest)


async def test_a_missing_reference_is_recorded_and_does_no_harm(store: SqlStore, tmp_path: Path):
    agent = Agent(
        name="a",
        references=(
            Reference(name="here", path="here.md", include="always"),
            Reference(name="gone", path="gone.md", include="always"),
        ),
    )
    (tmp_path / "here.md").write_text("I am here.")
    engine = Engine(store, EngineConfig.create(Settings(model="gpt-4o"), agent=agent, vault=tmp_path))
    request = await (await engine.conversation("c")).prepare("Hello")
    assert [(row.name, row.reason) for row in request.manifest.decisions if row.kind == "reference"] == [
        ("here", "always"),
        ("gone", "not_found"),
    ]


def make_tool(name: str, about: str, *, words: int = 5) -> ToolDefinition:
    properties = {"x": {"type": "string", "description": "word " * words}}
    return ToolDefinition(name=name, description=about, parameters={"type": "object", "properties": properties})


def make_agent(*tools: ToolDefinition, include: str = "agent") -> Agent:
    server = ToolServer(name="s", command="x", include=include)  # type: ignore[arg-type]
    return Agent(name="a", servers=(server,), tools=tuple(server.make_tool(each) for each in tools))


WEATHER = make_tool("weather", "Reports the weather forecast for a city.")
MAIL = make_tool("mail", "Sends an e-mail message to a person.")
TRAINS = make_tool("trains", "Looks up train connections and timetables.")


async def test_tools_come_in_where_a_message_calls_for_them_and_then_stay(store: SqlStore):
    conversation = await make_engine(store, make_agent(WEATHER, MAIL, TRAINS)).conversation("c")
    turns = (
        ("What is the weather forecast for Rome?", ["tool_search", "s__weather"]),
        ("Look up a train connection to Milan.", ["tool_search", "s__weather", "s__trains"]),
        ("Thank you!", ["tool_search", "s__weather", "s__trains"]),
    )
    for question, names in turns:
        request = await conversation.prepare(question)
        assert [each["function"]["name"] for each in request.to_chat()["tools"]] == names
        await conversation.record("Here you are.", request=request)
    reasons = {row.name: row.reason for row in request.manifest.included if row.kind == "tool"}
    assert reasons == {"tool_search": "always", "s__weather": "carried", "s__trains": "carried"}
    await conversation.remove_item("weather")
    tools = (await conversation.prepare("And now?")).to_chat()["tools"]
    assert [each["function"]["name"] for each in tools] == ["tool_search", "s__trains"]


async def test_a_model_finds_the_tools_that_its_request_omits(store: SqlStore):
    conversation = await make_engine(store, make_agent(WEATHER, MAIL, TRAINS)).conversation("c")
    request = await conversation.prepare("Good morning!")
    call = ToolCallPart(id="1", name="tool_search", arguments='{"query": "send an e-mail message"}')
    await conversation.record(Message(role="assistant", parts=(call,)), request=request)
    answer = await conversation.run_tool(call, request=request)
    assert "s__mail" in answer.message.tool_results[0].content[0].text
    await conversation.append(answer.message)
    tools = (await conversation.prepare()).to_chat()["tools"]
    assert [each["function"]["name"] for each in tools] == ["tool_search", "s__mail"]
    wrong = await conversation.run_tool(ToolCallPart(id="2", name="tool_search", arguments="{}"), request=request)
    assert wrong.message.tool_results[0].is_error


async def test_always_tools_beyond_the_slot_are_left_out_and_can_be_found(store: SqlStore):
    large = [make_tool(f"tool_{number}", f"Does the job number {number}.", words=200) for number in range(20)]
    engine = make_engine(store, make_agent(*large, include="always"), context_limit=8_192)
    conversation = await engine.conversation("c")
    request = await conversation.prepare("Do something.")
    manifest = request.manifest
    [slot] = [each for each in manifest.slots if each.slot == "tools"]
    assert 0 < slot.used <= slot.budget
    excluded = [row for row in manifest.excluded if row.kind == "tool"]
    assert excluded
    assert {row.reason for row in excluded} == {"over_budget"}
    omitted = str(excluded[-1].name)
    call = ToolCallPart(id="1", name="tool_search", arguments=f'{{"query": "{omitted.removeprefix("s__")}"}}')
    await conversation.run_tool(call, request=request)
    assert omitted in [row.name for row in (await conversation.prepare("Now?")).manifest.included]


async def test_the_programs_own_tools_are_there_whenever_it_offers_them(store: SqlStore):
    plain = Engine(store, EngineConfig.create(Settings(model="gpt-4o")))
    await (await plain.conversation("c")).append("Hello")
    with_tools = Engine(store, EngineConfig.create(Settings(model="gpt-4o"), tools=[WEATHER, MAIL]))
    conversation = await with_tools.conversation("c")
    tools = (await conversation.prepare("And?")).to_chat()["tools"]
    assert [each["function"]["name"] for each in tools] == ["weather", "mail"]
