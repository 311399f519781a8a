"""Items at three levels: what the agent has, what the session holds, what one request is made of."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quire.context.items import (
    InSession,
    RequestItem,
    available,
    blocks,
    initial_changes,
    items_in_session,
    mode_of,
    request_items,
)
from quire.context.names import by_name, sent_name
from quire.context.selection import Found, SelectionSettings, Selector, candidates
from quire.errors import InvalidConfiguration
from quire.model import BranchState, ContextChange, ContextItem, Coverage, fold
from quire.model.agents import Agent, Include, OfferedTool, Reference, Rule, ToolOverride, ToolServer, effective_include
from quire.model.tools import ToolDefinition
from quire.view.shapes.fields import valid_name


def tool(name: str, server: str | None = "s", **more: Any) -> OfferedTool:
    return OfferedTool(definition=ToolDefinition(name=name, parameters={}, server=server), **more)


def rule(name: str) -> ContextItem:
    return ContextItem(type="rule", name=name)


def reference(name: str) -> ContextItem:
    return ContextItem(type="reference", name=name)


def told(state: BranchState, *changes: ContextChange) -> BranchState:
    def none(seq: int) -> Coverage:
        raise AssertionError(seq)

    for seq, change in enumerate(changes, start=1):
        state = fold(state, seq, change, coverage_at=none)
    return state


def added(item: ContextItem) -> ContextChange:
    return ContextChange(action="add", item=item)


def removed(item: ContextItem) -> ContextChange:
    return ContextChange(action="remove", item=item)


@pytest.mark.parametrize(
    ("own", "server", "expected"),
    [
        ("always", None, "always"),
        ("manual", None, "manual"),
        ("agent", None, "agent"),
        (None, "always", "always"),
        (None, "manual", "manual"),
        (None, "agent", "agent"),
        ("always", "agent", "always"),
        ("agent", "always", "agent"),
        ("manual", "agent", "manual"),
        (None, None, "always"),
        (None, "no server", "always"),
    ],
)
def test_a_tools_own_mode_stands_before_its_servers_and_always_after_both(
    own: Include | None, server: Any, expected: Include
):
    known = None if server == "no server" else ToolServer(name="s", command="c", include=server)
    assert effective_include(tool("t", include=own), known) == expected
    agent = Agent(name="a", servers=() if known is None else (known,), tools=(tool("t", include=own),))
    assert mode_of(agent, agent.tools[0]) == expected


def test_a_server_offers_its_tools_with_what_is_set_for_each():
    set_for = {"a": ToolOverride(include="manual"), "b": ToolOverride(enabled=False)}
    server = ToolServer(name="files", command="c", include="agent", tools=set_for)
    offered = [server.offers(ToolDefinition(name=name, parameters={})) for name in "abc"]
    assert [(each.server, each.include, each.enabled) for each in offered] == [
        ("files", "manual", True),
        ("files", None, False),
        ("files", None, True),
    ]
    off = server.model_copy(update={"enabled": False})
    assert not off.offers(ToolDefinition(name="a", parameters={})).enabled


AGENT = Agent(
    name="helper",
    rules=(
        Rule(name="Rule A", text="Answer in English.", include="always"),
        Rule(name="Rule B", text="Show code in Python.", include="manual"),
        Rule(
            name="Rule C",
            description="Authentication: how clients log in and which tokens they send",
            text="Clients authenticate with a bearer token.",
            include="agent",
        ),
    ),
    references=(
        Reference(name="Reference X", text="The service has three parts.", include="always"),
        Reference(
            name="Reference Y",
            description="Error handling: status codes, retries, and what a client is shown",
            path="errors.md",
            include="agent",
        ),
    ),
)


async def test_the_flow_of_two_requests_over_one_session():
    state = told(BranchState(), *initial_changes(AGENT), added(rule("Rule B")))
    assert [(each.item.name, each.include) for each in state.items] == [
        ("Reference X", "always"),
        ("Rule A", "always"),
        ("Rule B", "manual"),
    ]
    session = [("Reference X", "always", None), ("Rule A", "always", None), ("Rule B", "manual", None)]
    recent: list[str] = []
    for message, chosen, other in [
        ("How do I authenticate?", "Rule C", "Reference Y"),
        ("What's the error handling?", "Reference Y", "Rule C"),
    ]:
        items = candidates(AGENT, present=[each.item for each in state.items])
        selection = await Selector().select(message, items, recent=recent)
        request = request_items(AGENT, state.items, selection.found)
        *kept, last = [(each.item.name, each.include, each.score) for each in request.items]
        assert kept == session
        assert last[:2] == (chosen, "agent")
        assert last[2] is not None
        assert last[2] > SelectionSettings().min_score
        (left_out,) = request.decided
        assert (left_out.name, left_out.reason, left_out.included) == (other, "below_score", False)
        assert left_out.score is not None
        recent = [message]


def test_a_new_session_has_what_is_always_there_by_priority_and_name():
    agent = Agent(
        name="a",
        rules=(
            Rule(name="z", text="", include="always", priority=5),
            Rule(name="b", text="", include="always"),
            Rule(name="off", text="", include="always", enabled=False),
            Rule(name="m", text="", include="manual", priority=9),
        ),
        references=(Reference(name="a", text="", include="always"),),
        tools=(tool("t"), tool("n", include="agent")),
    )
    changes = initial_changes(agent)
    assert [change.item.name for change in changes] == ["z", "a", "b", "t"]
    assert {(change.action, change.include) for change in changes} == {("add", "always")}


def test_what_was_taken_out_of_the_session_stays_out_and_says_so():
    state = told(BranchState(), *initial_changes(AGENT), removed(rule("Rule A")))
    assert [each.item.name for each in items_in_session(state, AGENT)] == ["Reference X"]
    request = request_items(AGENT, state.items)
    assert [each.item.name for each in request.items] == ["Reference X"]
    assert [(row.name, row.reason, row.slot) for row in request.decided] == [("Rule A", "disabled", "system")]


def test_any_item_can_be_added_by_hand_whatever_its_mode():
    state = told(BranchState(), added(rule("Rule C")))
    request = request_items(AGENT, state.items, [Found(item=rule("Rule C"), score=0.9)])
    assert request.items == (RequestItem(item=rule("Rule C"), include="manual"),)


def test_what_is_switched_off_or_gone_is_left_out_with_its_reason():
    off = Rule(name="off", text="", include="agent", enabled=False)
    agent = Agent(name="a", rules=(off,), tools=(tool("t", enabled=False),))
    state = told(BranchState(), added(rule("gone")), added(agent.tools[0].item))
    request = request_items(agent, state.items, [Found(item=off.item, score=0.9), Found(item=rule("also"), score=0.8)])
    assert request.items == ()
    assert [(row.name, row.reason, row.score) for row in request.decided] == [
        ("gone", "not_found", None),
        ("s__t", "disabled", None),
        ("off", "disabled", 0.9),
        ("also", "not_found", 0.8),
    ]
    assert items_in_session(state, agent)[0] == InSession(rule("gone"), "manual", None)


def test_a_reason_of_the_session_stands_before_one_of_the_search():
    off = Rule(name="off", text="", include="agent", enabled=False)
    found = [Found(item=off.item, score=0.1, left_out="below_score")]
    state = told(BranchState(), added(off.item))
    (row,) = request_items(Agent(name="a", rules=(off,)), state.items, found).decided
    assert (row.reason, row.slot, row.score) == ("disabled", "system", None)


def test_what_was_found_stands_by_its_score():
    rules = tuple(Rule(name=name, text="", include="agent") for name in "abc")
    found = [Found(item=each.item, score=score) for each, score in zip(rules, (0.4, 0.9, 0.4), strict=True)]
    request = request_items(Agent(name="x", rules=rules), (), found)
    assert [each.item.name for each in request.items] == ["b", "a", "c"]


def test_tools_that_an_earlier_message_brought_are_carried():
    agent = Agent(name="a", tools=(tool("always"), tool("found", include="agent"), tool("new", include="agent")))
    always, found, new = (each.item for each in agent.tools)
    brought = [ContextChange(action="add", item=item, include="agent") for item in (found, always)]
    state = told(BranchState(), *initial_changes(agent), *brought)
    request = request_items(agent, state.items, [Found(item=new, score=0.4)])
    assert [(each.item.name, each.include) for each in request.items] == [
        ("always", "carried"),
        ("found", "carried"),
        ("new", "agent"),
    ]
    without = told(state, ContextChange(action="remove", item=found))
    assert found not in [each.item for each in request_items(agent, without.items).items]


def test_blocks_stand_where_their_items_belong():
    request = (
        RequestItem(item=rule("Rule A"), include="always"),
        RequestItem(item=reference("Reference X"), include="manual"),
        RequestItem(item=rule("Rule C"), include="agent", score=0.9),
        RequestItem(item=reference("Reference Y"), include="agent", score=0.8),
    )
    made = blocks(AGENT, request, read={"errors.md": "Every error has a code."}.__getitem__)
    assert [(block.slot, block.what, block.name, block.reason, block.required, block.score) for block in made] == [
        ("system", "rule", "Rule A", "always", True, None),
        ("references", "reference", "Reference X", "manual", True, None),
        ("recall", "rule", "Rule C", "agent", False, 0.9),
        ("recall", "reference", "Reference Y", "agent", False, 0.8),
    ]
    assert [block.text for block in made][::3] == ["Answer in English.", "Every error has a code."]


def test_tools_make_no_blocks():
    agent = Agent(name="a", tools=(tool("t"),))
    assert blocks(agent, [RequestItem(item=agent.tools[0].item, include="always")], read=str) == []


NAMES = st.sampled_from("abcdef")
MODES = st.sampled_from(["always", "manual", "agent"])
KNOWN = {
    "name": NAMES,
    "text": st.just("t"),
    "include": MODES,
    "priority": st.integers(-2, 2),
    "enabled": st.booleans(),
}


def unique(items: Any) -> Any:
    return st.lists(items, unique_by=lambda each: each.name, max_size=5).map(tuple)


AGENTS = st.builds(
    Agent,
    name=st.just("a"),
    rules=unique(st.builds(Rule, **KNOWN)),
    references=unique(st.builds(Reference, **KNOWN)),
    tools=unique(st.builds(tool, NAMES, include=MODES, enabled=st.booleans())),
)
ITEMS = st.builds(
    lambda kind, name: ContextItem(type=kind, name=name, server="s" if kind == "tool" else None),
    st.sampled_from(["rule", "reference", "tool"]),
    NAMES,
)
CHANGES = st.lists(
    st.builds(ContextChange, action=st.sampled_from(["add", "remove"]), item=ITEMS, include=st.just("manual")),
    max_size=6,
)
FOUND = st.lists(
    st.builds(Found, item=ITEMS, score=st.sampled_from([0.1, 0.5]), left_out=st.sampled_from([None, "below_score"])),
    unique_by=lambda each: each.item,
    max_size=6,
)


@given(AGENTS, CHANGES, FOUND)
def test_every_candidate_is_in_the_request_or_has_one_decision(
    agent: Agent, changes: list[ContextChange], found: list[Found]
):
    state = told(BranchState(), *initial_changes(agent), *changes)
    request = request_items(agent, state.items, found)
    known = available(agent)
    entered = [each.item for each in request.items]
    decided = [(row.what, row.name) for row in request.decided]
    assert len(set(entered)) == len(entered)
    assert len(set(decided)) == len(decided)
    named = {(item.type, sent_name(item) if item.type == "tool" else item.name): item for item in (*known, *entered)}
    assert not {named.get((what, name or "")) for what, name in decided} & set(entered)
    # A superset of the session: all of it that is there and switched on.
    assert set(entered) >= {each.item for each in state.items if each.item in known and known[each.item].enabled}
    for item in {each.item for each in state.items} | {each.item for each in found}:
        label = (item.type, sent_name(item) if item.type == "tool" else item.name)
        assert (item in entered) != (label in decided)
    for item, each in known.items():
        if not each.enabled:
            assert item not in entered
    kinds = [each.include for each in request.items]
    assert kinds == sorted(kinds, key=("always", "manual", "carried", "agent").index)
    assert request_items(agent, state.items[::-1], found[::-1]).items == request.items


def test_two_items_of_one_name_are_refused():
    twice = (Rule(name="a", text="1"), Rule(name="a", text="2"))
    with pytest.raises(ValidationError, match="'a'"):
        Agent(name="x", rules=twice)
    with pytest.raises(ValidationError, match="text or a path"):
        Reference(name="a")


def test_a_servers_secrets_are_not_in_what_is_printed():
    server = ToolServer(name="s", url="http://x", headers={"Authorization": "hush"}, env={"TOKEN": "hush"})
    assert "hush" not in repr(server)


@pytest.mark.parametrize(
    ("server", "name", "expected"),
    [
        (None, "read", "read"),
        ("files", "read", "files__read"),
        ("files", "_read", "files___read"),
        ("my-files", "read-all", "my-files__read-all"),
        ("files", "a__b", "files__a__b"),
    ],
)
def test_plain_names_stay_readable(server: str | None, name: str, expected: str):
    assert sent_name(ContextItem(type="tool", name=name, server=server)) == expected


TOOL_NAMES = st.text(st.sampled_from("ab_-é. "), min_size=1, max_size=40) | st.text(min_size=1, max_size=90)
TOOLS = st.builds(ContextItem, type=st.just("tool"), name=TOOL_NAMES, server=st.none() | TOOL_NAMES)


@given(st.lists(TOOLS, unique=True, max_size=8))
def test_names_are_valid_for_both_providers_and_read_back(items: list[ContextItem]):
    named = by_name(items)
    assert [named[sent_name(item)] for item in items] == items
    assert all(valid_name(name) for name in named)


def test_names_that_would_run_together_are_kept_apart():
    pairs = [("a__b", "c"), ("a", "b__c"), (None, "a__b__c"), ("a_", "b"), ("a", "_b"), ("", "x"), ("a b", "c")]
    items = [ContextItem(type="tool", name=name, server=server) for server, name in pairs]
    assert len(by_name(items)) == len(items)


def test_two_tools_that_cannot_be_told_apart_are_refused():
    with pytest.raises(InvalidConfiguration, match="'x'"):
        by_name([ContextItem(type="tool", name="x"), ContextItem(type="tool", name="x", server="")])
