"""Tool budget: the list only grows; tools without room are excluded, and `tool_search` finds them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_cases import make_shop_agent

from quire.context.items import build_initial_changes, collect_request_items, index_by_wire_name
from quire.context.selection import ScoredItem, Selector, to_candidate
from quire.context.tools import (
    ALWAYS_SHARE,
    DEFAULT_TOOL_RESULTS,
    MAX_TOOL_RESULTS,
    TOOL_SEARCH,
    TOOL_SEARCH_ITEM,
    ToolSearchCall,
    ToolSet,
    find_tools,
    fit_tools,
    format_tool_hits,
    list_fitting_items,
    parse_tool_search,
)
from quire.model import ContextItem, SessionItem, ToolDefinition
from quire.model.agents import Agent, AgentTool, IncludeMode, ToolServer
from quire.wire.fields import is_valid_name

TOOL_SEARCH_TOKENS = 10


def make_tool(name: str, include: IncludeMode | None = None, *, tokens: int = 10, **more: Any) -> AgentTool:
    definition = ToolDefinition(name=name, description=str(tokens), parameters={}, server="s")
    return AgentTool(definition=definition, include=include, **more)


def count_tokens(definition: ToolDefinition) -> int:
    return TOOL_SEARCH_TOKENS if definition.name == TOOL_SEARCH.name else int(definition.description)


class FakeSession:
    """The session's tools as the log has them, request after request."""

    def __init__(self, agent: Agent, ceiling: int) -> None:
        self.agent, self.ceiling = agent, ceiling
        self.items = [SessionItem(item=change.item, include=change.include) for change in build_initial_changes(agent)]

    def request(self, *found: ScoredItem) -> ToolSet:
        request = collect_request_items(self.agent, self.items, found)
        order = [each.item for each in self.items]
        tool_set = fit_tools(
            self.agent, request.items, max_tokens=self.ceiling, count_tokens=count_tokens, session_order=order
        )
        self.carry(*tool_set.added_items)
        return tool_set

    def carry(self, *items: ContextItem) -> None:
        others = [each for each in self.items if each.item not in items]
        self.items = [*others, *(SessionItem(item=item, include="agent") for item in items)]

    def add(self, offered: AgentTool) -> None:
        self.items.append(SessionItem(item=offered.item, include="manual"))


def scored_item(offered: AgentTool, score: float = 0.9) -> ScoredItem:
    return ScoredItem(item=offered.item, score=score)


def tool_names(tool_set: ToolSet) -> list[str]:
    return [each.item.name for each in tool_set.tools]


def test_what_fits_goes_in_whole_and_without_a_search():
    agent = Agent(name="a", tools=(make_tool("b"), make_tool("a"), make_tool("by hand", "manual")))
    session = FakeSession(agent, ceiling=40)
    tool_set = session.request()
    assert tool_names(tool_set) == ["a", "b"]
    assert {each.reason for each in tool_set.tools} == {"always"}
    assert (tool_set.decisions, tool_set.omitted, tool_set.free_tokens) == ((), (), 20)
    session.add(agent.tools[2])
    assert [(each.item.name, each.reason) for each in session.request().tools][2:] == [("by hand", "manual")]


def test_a_tool_that_a_message_brought_stays_and_new_ones_go_to_the_end():
    mail, maps = make_tool("mail", "agent"), make_tool("maps", "agent")
    session = FakeSession(Agent(name="a", tools=(make_tool("clock"), mail, maps)), ceiling=100)
    selected = session.request()
    assert tool_names(selected) == ["tool_search", "clock"]
    assert selected.omitted == (mail, maps)
    first = session.request(scored_item(maps, 0.8))
    assert tool_names(first) == ["tool_search", "clock", "maps"]
    assert first.tools[2].reason == "agent"
    assert first.tools[2].score == 0.8
    assert first.added_items == (maps.item,)
    second = session.request(scored_item(mail))
    assert [(each.item.name, each.reason) for each in second.tools][2:] == [("maps", "carried"), ("mail", "agent")]
    third = session.request()
    assert third.definitions == second.definitions
    assert third.added_items == ()


def test_what_has_no_room_is_left_out_with_its_price_and_can_be_found():
    big, small = make_tool("big", "agent", tokens=90), make_tool("small", "agent")
    session = FakeSession(Agent(name="a", tools=(big, small)), ceiling=50)
    tool_set = session.request(scored_item(big, 0.9), scored_item(small, 0.5))
    assert tool_names(tool_set) == ["tool_search", "small"]
    (row,) = tool_set.decisions
    assert (row.slot, row.kind, row.name, row.reason) == ("tools", "tool", "s__big", "over_budget")
    assert (row.included, row.tokens, row.score) == (False, 90, 0.9)
    assert tool_set.omitted == (big,)
    assert tool_set.free_tokens == 30


def test_too_many_always_tools_reserve_room_for_selected_ones():
    tools = tuple(make_tool(f"t{number:03}") for number in range(142))
    session = FakeSession(Agent(name="a", tools=tools), ceiling=200)
    tool_set = session.request()
    assert tool_names(tool_set) == ["tool_search", *(f"t{number:03}" for number in range(14))]
    assert sum(each.tokens for each in tool_set.tools) <= 200 * ALWAYS_SHARE
    assert len(tool_set.decisions) == len(tool_set.omitted) == 128
    assert {row.reason for row in tool_set.decisions} == {"over_budget"}
    (hit,) = find_tools(
        {tools[99].item: 0.8}, tool_set.omitted, free_tokens=tool_set.free_tokens, count_tokens=count_tokens
    )
    session.carry(*list_fitting_items([hit]))
    after = session.request()
    assert tool_names(after) == [*tool_names(tool_set), "t099"]
    assert after.definitions[: len(tool_set.tools)] == tool_set.definitions


def test_a_tool_taken_out_of_the_session_goes():
    agent = Agent(name="a", tools=(make_tool("a"), make_tool("b")))
    session = FakeSession(agent, ceiling=100)
    session.request()
    session.items = session.items[1:]
    tool_set = session.request()
    assert tool_names(tool_set) == ["b"]
    assert tool_set.omitted == ()


def test_tools_of_two_servers_with_one_name_are_distinguished():
    offered = [
        AgentTool(definition=ToolDefinition(name="read", description="5", parameters={}, server=server))
        for server in ("files", "mail", "files__read", "märz")
    ]
    tool_set = FakeSession(Agent(name="a", tools=tuple(offered)), ceiling=100).request()
    sent = [definition.name for definition in tool_set.definitions]
    assert {"files__read", "mail__read"} <= set(sent)
    assert len(set(sent)) == 4
    assert all(is_valid_name(name) for name in sent)
    items = index_by_wire_name(tool.item for tool in tool_set.tools)
    assert [items[name] for name in sent] == [each.item for each in tool_set.tools]


def test_a_slot_without_room_for_the_search_goes_without():
    tool_set = FakeSession(Agent(name="a", tools=(make_tool("a", "agent"),)), ceiling=5).request()
    assert tool_set.tools == ()
    assert [(row.name, row.reason) for row in tool_set.decisions] == [("tool_search", "over_budget")]


MODES = st.sampled_from([None, "always", "manual", "agent"])
TOOLS = st.lists(
    st.builds(make_tool, st.sampled_from("abcdefgh"), MODES, tokens=st.integers(1, 40), enabled=st.booleans()),
    unique_by=lambda each: each.name,
    max_size=8,
).map(tuple)
SERVERS = st.sampled_from([(), (ToolServer(name="s", command="c", include="agent"),)])


@given(TOOLS, SERVERS, st.integers(0, 120), st.data())
def test_the_list_only_grows_and_never_exceeds_its_slot(
    tools: tuple[AgentTool, ...], servers: tuple[ToolServer, ...], ceiling: int, data: st.DataObject
):
    session = FakeSession(Agent(name="a", tools=tools, servers=servers), ceiling)
    before: tuple[ToolDefinition, ...] = ()
    for _ in range(4):
        step = data.draw(st.sampled_from(["ask", "add", "search"]))
        chosen = data.draw(st.lists(st.sampled_from(tools), unique_by=lambda each: each.name)) if tools else []
        selected = [
            scored_item(each, 0.5)
            for each in chosen
            if step == "ask" and session.agent.include_mode_of(each) == "agent"
        ]
        if step == "add":
            for each in chosen:
                if each.item not in [known.item for known in session.items]:
                    session.add(each)
        tool_set = session.request(*selected)
        assert sum(map(count_tokens, tool_set.definitions)) == ceiling - tool_set.free_tokens <= ceiling
        assert tool_set.definitions[: len(before)] == before
        sent = {each.item for each in tool_set.tools}
        assert not sent & {each.item for each in tool_set.omitted}
        assert len(sent) == len(tool_set.tools)
        assert all(known.enabled for known in tools if known.item in sent)
        before = tool_set.definitions
        if step == "search":
            scores = {each.item: 0.5 for each in chosen}
            hits = find_tools(scores, tool_set.omitted, free_tokens=tool_set.free_tokens, count_tokens=count_tokens)
            session.carry(*list_fitting_items(hits))
            promised = {hit.item for hit in hits if hit.fits}
            tool_set = session.request()
            assert promised <= {each.item for each in tool_set.tools}
            assert tool_set.definitions[: len(before)] == before
            before = tool_set.definitions


def test_adding_by_hand_after_a_search_keeps_the_order_of_the_log():
    mail, maps = make_tool("mail", "agent"), make_tool("maps", "manual")
    session = FakeSession(Agent(name="a", tools=(mail, maps)), ceiling=100)
    session.request(scored_item(mail))
    session.add(maps)
    assert tool_names(session.request()) == ["tool_search", "mail", "maps"]


class TestTheSearch:
    @pytest.mark.parametrize(
        ("arguments", "call"),
        [
            ('{"query": "send mail"}', ToolSearchCall("send mail", DEFAULT_TOOL_RESULTS)),
            ('{"query": "x", "limit": 2}', ToolSearchCall("x", 2)),
            ('{"query": "x", "limit": 999}', ToolSearchCall("x", MAX_TOOL_RESULTS)),
            ('{"query": "x", "limit": -1}', ToolSearchCall("x", 1)),
            ('{"query": "x", "limit": "many"}', ToolSearchCall("x", DEFAULT_TOOL_RESULTS)),
            ('{"query": "x", "limit": true}', ToolSearchCall("x", DEFAULT_TOOL_RESULTS)),
            ('{"query": "  "}', None),
            ('{"query": 3}', None),
            ("{}", None),
            ("[]", None),
            ("not JSON", None),
            ("[" * 100_000, None),
        ],
    )
    def test_any_arguments_are_read(self, arguments: str, call: ToolSearchCall | None):
        assert parse_tool_search(arguments) == call

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("send an email", "mail__send_email"),
            ("merge pull request", "github__merge_pull_request"),
            ("read_file", "files__read_file"),
            ("crop image", "images__resize_image"),
            ("weather tomorrow", "weather__forecast"),
            ("schedule a meeting", "calendar__create_event"),
            ("slack", "slack__post_message"),
            ("refund money to a card", "stripe__issue_refund"),
        ],
    )
    async def test_a_tool_is_found_by_its_name_or_by_what_it_does(self, query: str, expected: str):
        omitted = make_shop_agent().tools
        scores, _ = await Selector().score(query, [to_candidate(each) for each in omitted])
        hits = find_tools(scores, omitted, free_tokens=10_000, count_tokens=lambda _: 100, limit=3)
        assert expected in [hit.name for hit in hits]
        assert all(hit.score == scores[hit.item] for hit in hits)

    async def test_nothing_like_it_finds_nothing(self):
        omitted = make_shop_agent().tools
        scores, _ = await Selector().score("penguin", [to_candidate(each) for each in omitted])
        hits = find_tools(scores, omitted, free_tokens=10_000, count_tokens=lambda _: 100)
        assert hits == []
        assert format_tool_hits(hits).startswith("No tool")

    def test_what_has_no_room_is_said_to_have_none(self):
        tools = (make_tool("a", tokens=60), make_tool("b", tokens=60), make_tool("c", tokens=30))
        scores = {each.item: score for each, score in zip(tools, (0.9, 0.8, 0.7), strict=True)}
        hits = find_tools(scores, tools, free_tokens=100, count_tokens=count_tokens)
        assert [(hit.name, hit.fits) for hit in hits] == [("s__a", True), ("s__b", False), ("s__c", True)]
        assert list_fitting_items(hits) == (tools[0].item, tools[2].item)
        note, *lines = format_tool_hits(hits).splitlines()
        assert "no room" in note
        results = [json.loads(line) for line in lines]
        assert [each["name"] for each in results] == ["s__a", "s__b", "s__c"]
        assert ["note" in each for each in results] == [False, True, False]
        assert all(each["server"] == "s" for each in results)

    def test_hits_are_limited_the_best_first_and_ties_by_name(self):
        tools = tuple(make_tool(name) for name in "dacb")
        scores = dict.fromkeys((each.item for each in tools), 0.5) | {tools[2].item: 0.6}
        hits = find_tools(scores, tools, free_tokens=1_000, count_tokens=count_tokens, limit=3)
        assert [hit.item.name for hit in hits] == ["c", "a", "b"]

    def test_its_definition_is_one_that_providers_take(self):
        assert is_valid_name(TOOL_SEARCH.name)
        assert TOOL_SEARCH.parameters["required"] == ["query"]
        assert TOOL_SEARCH_ITEM.name == TOOL_SEARCH.name
