"""The tool budget: a list that only grows, what has no room, and how a model finds it all the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_data import shelf

from quire.context.items import initial_changes, request_items
from quire.context.selection import Found, Selector, candidate
from quire.context.tool_search import FOUND, MOST, TOOL_SEARCH, SearchCall, brought, found_tools, read_call, told
from quire.context.tools import ALWAYS_SHARE, SEARCH_ITEM, ToolSet, fit_tools
from quire.model import ContextItem, SessionItem, ToolDefinition
from quire.model.agents import Agent, Include, OfferedTool, ToolServer
from quire.view.shapes.fields import valid_name

PRICE_OF_SEARCH = 10


def tool(name: str, include: Include | None = None, *, price: int = 10, **more: Any) -> OfferedTool:
    definition = ToolDefinition(name=name, description=str(price), parameters={}, server="s")
    return OfferedTool(definition=definition, include=include, **more)


def price(definition: ToolDefinition) -> int:
    return PRICE_OF_SEARCH if definition.name == TOOL_SEARCH.name else int(definition.description)


class Session:
    """What the log would hold of a session's tools, request after request."""

    def __init__(self, agent: Agent, ceiling: int) -> None:
        self.agent, self.ceiling = agent, ceiling
        self.items = [SessionItem(item=change.item, include=change.include) for change in initial_changes(agent)]

    def request(self, *found: Found) -> ToolSet:
        request = request_items(self.agent, self.items, found)
        order = [each.item for each in self.items]
        made = fit_tools(self.agent, request.items, ceiling=self.ceiling, tokens=price, order=order)
        self.carry(*made.entered)
        return made

    def carry(self, *items: ContextItem) -> None:
        kept = [each for each in self.items if each.item not in items]
        self.items = [*kept, *(SessionItem(item=item, include="agent") for item in items)]

    def add(self, offered: OfferedTool) -> None:
        self.items.append(SessionItem(item=offered.item, include="manual"))


def found(offered: OfferedTool, score: float = 0.9) -> Found:
    return Found(item=offered.item, score=score)


def names(made: ToolSet) -> list[str]:
    return [each.item.name for each in made.tools]


def test_what_fits_goes_in_whole_and_without_a_search():
    agent = Agent(name="a", tools=(tool("b"), tool("a"), tool("by hand", "manual")))
    session = Session(agent, ceiling=40)
    made = session.request()
    assert names(made) == ["a", "b"]
    assert {each.reason for each in made.tools} == {"always"}
    assert (made.decided, made.omitted, made.room) == ((), (), 20)
    session.add(agent.tools[2])
    assert [(each.item.name, each.reason) for each in session.request().tools][2:] == [("by hand", "manual")]


def test_a_tool_that_a_message_brought_stays_and_new_ones_go_to_the_end():
    mail, maps = tool("mail", "agent"), tool("maps", "agent")
    session = Session(Agent(name="a", tools=(tool("clock"), mail, maps)), ceiling=100)
    asked = session.request()
    assert names(asked) == ["tool_search", "clock"]
    assert asked.omitted == (mail, maps)
    first = session.request(found(maps, 0.8))
    assert names(first) == ["tool_search", "clock", "maps"]
    assert first.tools[2].reason == "agent"
    assert first.tools[2].score == 0.8
    assert first.entered == (maps.item,)
    second = session.request(found(mail))
    assert [(each.item.name, each.reason) for each in second.tools][2:] == [("maps", "carried"), ("mail", "agent")]
    third = session.request()
    assert third.definitions == second.definitions
    assert third.entered == ()


def test_what_has_no_room_is_left_out_with_its_price_and_can_be_found():
    big, small = tool("big", "agent", price=90), tool("small", "agent")
    session = Session(Agent(name="a", tools=(big, small)), ceiling=50)
    made = session.request(found(big, 0.9), found(small, 0.5))
    assert names(made) == ["tool_search", "small"]
    (row,) = made.decided
    assert (row.slot, row.what, row.name, row.reason) == ("tools", "tool", "s__big", "over_budget")
    assert (row.included, row.tokens, row.score) == (False, 90, 0.9)
    assert made.omitted == (big,)
    assert made.room == 30


def test_too_many_tools_that_are_always_there_leave_room_for_what_is_found():
    tools = tuple(tool(f"t{number:03}") for number in range(142))
    session = Session(Agent(name="a", tools=tools), ceiling=200)
    made = session.request()
    assert names(made) == ["tool_search", *(f"t{number:03}" for number in range(14))]
    assert sum(each.tokens for each in made.tools) <= 200 * ALWAYS_SHARE
    assert len(made.decided) == len(made.omitted) == 128
    assert {row.reason for row in made.decided} == {"over_budget"}
    (hit,) = found_tools({tools[99].item: 0.8}, made.omitted, room=made.room, tokens=price)
    session.carry(*brought([hit]))
    after = session.request()
    assert names(after) == [*names(made), "t099"]
    assert after.definitions[: len(made.tools)] == made.definitions


def test_a_tool_taken_out_of_the_session_goes():
    agent = Agent(name="a", tools=(tool("a"), tool("b")))
    session = Session(agent, ceiling=100)
    session.request()
    session.items = session.items[1:]
    made = session.request()
    assert names(made) == ["b"]
    assert made.omitted == ()


def test_tools_of_two_servers_with_one_name_are_told_apart():
    offered = [
        OfferedTool(definition=ToolDefinition(name="read", description="5", parameters={}, server=server))
        for server in ("files", "mail", "files__read", "märz")
    ]
    made = Session(Agent(name="a", tools=tuple(offered)), ceiling=100).request()
    sent = [definition.name for definition in made.definitions]
    assert {"files__read", "mail__read"} <= set(sent)
    assert len(set(sent)) == 4
    assert all(valid_name(name) for name in sent)
    assert [made.called(name) for name in sent] == [each.item for each in made.tools]
    assert made.called("nobody") is None


def test_a_slot_without_room_for_the_search_goes_without():
    made = Session(Agent(name="a", tools=(tool("a", "agent"),)), ceiling=5).request()
    assert made.tools == ()
    assert [(row.name, row.reason) for row in made.decided] == [("tool_search", "over_budget")]


MODES = st.sampled_from([None, "always", "manual", "agent"])
TOOLS = st.lists(
    st.builds(tool, st.sampled_from("abcdefgh"), MODES, price=st.integers(1, 40), enabled=st.booleans()),
    unique_by=lambda each: each.name,
    max_size=8,
).map(tuple)
SERVERS = st.sampled_from([(), (ToolServer(name="s", command="c", include="agent"),)])


@given(TOOLS, SERVERS, st.integers(0, 120), st.data())
def test_the_list_only_grows_and_never_exceeds_its_slot(
    tools: tuple[OfferedTool, ...], servers: tuple[ToolServer, ...], ceiling: int, data: st.DataObject
):
    session = Session(Agent(name="a", tools=tools, servers=servers), ceiling)
    before: tuple[ToolDefinition, ...] = ()
    for _ in range(4):
        step = data.draw(st.sampled_from(["ask", "add", "search"]))
        chosen = data.draw(st.lists(st.sampled_from(tools), unique_by=lambda each: each.name)) if tools else []
        asked = [found(each, 0.5) for each in chosen if step == "ask" and session.agent.include_of(each) == "agent"]
        if step == "add":
            for each in chosen:
                if each.item not in [known.item for known in session.items]:
                    session.add(each)
        made = session.request(*asked)
        assert sum(map(price, made.definitions)) == ceiling - made.room <= ceiling
        assert made.definitions[: len(before)] == before
        sent = {each.item for each in made.tools}
        assert not sent & {each.item for each in made.omitted}
        assert len(sent) == len(made.tools)
        assert all(known.enabled for known in tools if known.item in sent)
        before = made.definitions
        if step == "search":
            scores = {each.item: 0.5 for each in chosen}
            hits = found_tools(scores, made.omitted, room=made.room, tokens=price)
            session.carry(*brought(hits))
            promised = {hit.item for hit in hits if hit.fits}
            made = session.request()
            assert promised <= {each.item for each in made.tools}
            assert made.definitions[: len(before)] == before
            before = made.definitions


def test_adding_by_hand_after_a_search_keeps_the_order_of_the_log():
    mail, maps = tool("mail", "agent"), tool("maps", "manual")
    session = Session(Agent(name="a", tools=(mail, maps)), ceiling=100)
    session.request(found(mail))
    session.add(maps)
    assert names(session.request()) == ["tool_search", "mail", "maps"]


class TestTheSearch:
    @pytest.mark.parametrize(
        ("arguments", "call"),
        [
            ('{"query": "send mail"}', SearchCall("send mail", FOUND)),
            ('{"query": "x", "limit": 2}', SearchCall("x", 2)),
            ('{"query": "x", "limit": 999}', SearchCall("x", MOST)),
            ('{"query": "x", "limit": -1}', SearchCall("x", 1)),
            ('{"query": "x", "limit": "many"}', SearchCall("x", FOUND)),
            ('{"query": "x", "limit": true}', SearchCall("x", FOUND)),
            ('{"query": "  "}', None),
            ('{"query": 3}', None),
            ("{}", None),
            ("[]", None),
            ("not JSON", None),
            ("[" * 100_000, None),
        ],
    )
    def test_any_arguments_are_read(self, arguments: str, call: SearchCall | None):
        assert read_call(arguments) == call

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
        omitted = shelf().tools
        scores, _ = await Selector().scores(query, [candidate(each) for each in omitted])
        hits = found_tools(scores, omitted, room=10_000, tokens=lambda _: 100, limit=3)
        assert expected in [hit.name for hit in hits]
        assert all(hit.score == scores[hit.item] for hit in hits)

    async def test_nothing_like_it_finds_nothing(self):
        omitted = shelf().tools
        scores, _ = await Selector().scores("penguin", [candidate(each) for each in omitted])
        hits = found_tools(scores, omitted, room=10_000, tokens=lambda _: 100)
        assert hits == []
        assert told(hits).startswith("No tool")

    def test_what_has_no_room_is_said_to_have_none(self):
        tools = (tool("a", price=60), tool("b", price=60), tool("c", price=30))
        scores = {each.item: score for each, score in zip(tools, (0.9, 0.8, 0.7), strict=True)}
        hits = found_tools(scores, tools, room=100, tokens=price)
        assert [(hit.name, hit.fits) for hit in hits] == [("s__a", True), ("s__b", False), ("s__c", True)]
        assert brought(hits) == (tools[0].item, tools[2].item)
        note, *lines = told(hits).splitlines()
        assert "no room" in note
        shown = [json.loads(line) for line in lines]
        assert [each["name"] for each in shown] == ["s__a", "s__b", "s__c"]
        assert ["note" in each for each in shown] == [False, True, False]
        assert all(each["server"] == "s" for each in shown)

    def test_at_most_so_many_are_given_the_best_first_and_ties_by_name(self):
        tools = tuple(tool(name) for name in "dacb")
        scores = dict.fromkeys((each.item for each in tools), 0.5) | {tools[2].item: 0.6}
        hits = found_tools(scores, tools, room=1_000, tokens=price, limit=3)
        assert [hit.item.name for hit in hits] == ["c", "a", "b"]

    def test_its_definition_is_one_that_providers_take(self):
        assert valid_name(TOOL_SEARCH.name)
        assert TOOL_SEARCH.parameters["required"] == ["query"]
        assert SEARCH_ITEM.name == TOOL_SEARCH.name
