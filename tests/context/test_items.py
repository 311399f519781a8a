"""Items at three levels: of the agent, of the session, of a request."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quire.context.items import (
    RequestItem,
    ResolvedSessionItem,
    build_blocks,
    build_initial_changes,
    collect_request_items,
    get_include_mode,
    index_agent_items,
    index_by_wire_name,
    list_session_items,
    wire_name,
)
from quire.context.selection import ScoredItem
from quire.errors import InvalidConfiguration
from quire.model import ActiveCompaction, BranchState, ContextChange, ContextItem, apply_entry
from quire.model.agents import (
    Agent,
    AgentTool,
    IncludeMode,
    Reference,
    Rule,
    ToolOverride,
    ToolServer,
    effective_include_mode,
)
from quire.model.messages import ToolDefinition
from quire.wire.fields import is_valid_name, to_safe_name


def make_tool(name: str, server: str | None = "s", **more: Any) -> AgentTool:
    return AgentTool(definition=ToolDefinition(name=name, parameters={}, server=server), **more)


def rule_item(name: str) -> ContextItem:
    return ContextItem(type="rule", name=name)


def reference_item(name: str) -> ContextItem:
    return ContextItem(type="reference", name=name)


def apply_changes(state: BranchState, *changes: ContextChange) -> BranchState:
    def none(seq: int) -> ActiveCompaction:
        raise AssertionError(seq)

    for seq, change in enumerate(changes, start=1):
        state = apply_entry(state, seq, change, compaction_at=none)
    return state


def add_change(item: ContextItem) -> ContextChange:
    return ContextChange(action="add", item=item)


def remove_change(item: ContextItem) -> ContextChange:
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
def test_a_tools_own_mode_overrides_its_servers_and_always_is_the_default(
    own: IncludeMode | None, server: Any, expected: IncludeMode
):
    known = None if server == "no server" else ToolServer(name="s", command="c", include=server)
    assert effective_include_mode(make_tool("t", include=own), known) == expected
    agent = Agent(name="a", servers=() if known is None else (known,), tools=(make_tool("t", include=own),))
    assert get_include_mode(agent, agent.tools[0]) == expected


def test_a_server_offers_its_tools_with_what_is_set_for_each():
    set_for = {"a": ToolOverride(include="manual"), "b": ToolOverride(enabled=False)}
    server = ToolServer(name="files", command="c", include="agent", tools=set_for)
    offered = [server.make_tool(ToolDefinition(name=name, parameters={})) for name in "abc"]
    assert [(each.server, each.include, each.enabled) for each in offered] == [
        ("files", "manual", True),
        ("files", None, False),
        ("files", None, True),
    ]
    off = server.model_copy(update={"enabled": False})
    assert not off.make_tool(ToolDefinition(name="a", parameters={})).enabled


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
        tools=(make_tool("t"), make_tool("n", include="agent")),
    )
    changes = build_initial_changes(agent)
    assert [change.item.name for change in changes] == ["z", "a", "b", "t"]
    assert {(change.action, change.include) for change in changes} == {("add", "always")}


def test_what_was_taken_out_of_the_session_stays_out_and_says_so():
    state = apply_changes(BranchState(), *build_initial_changes(AGENT), remove_change(rule_item("Rule A")))
    assert [each.item.name for each in list_session_items(state, AGENT)] == ["Reference X"]
    request = collect_request_items(AGENT, state.items, removed=state.removed_items)
    assert [each.item.name for each in request.items] == ["Reference X"]
    assert [(row.name, row.reason, row.slot, row.score) for row in request.decisions] == [
        ("Rule A", "removed", "system", None),
        ("Rule B", "not_added", "system", None),
        ("Rule C", "below_score", "recall", 0.0),
        ("Reference Y", "below_score", "recall", 0.0),
    ]


def test_any_item_can_be_added_by_hand_whatever_its_mode():
    state = apply_changes(BranchState(), add_change(rule_item("Rule C")))
    request = collect_request_items(AGENT, state.items, [ScoredItem(item=rule_item("Rule C"), score=0.9)])
    assert request.items == (RequestItem(item=rule_item("Rule C"), include="manual"),)


def test_what_is_switched_off_or_gone_is_left_out_with_its_reason():
    off = Rule(name="off", text="", include="agent", enabled=False)
    agent = Agent(name="a", rules=(off,), tools=(make_tool("t", enabled=False),))
    state = apply_changes(BranchState(), add_change(rule_item("gone")), add_change(agent.tools[0].item))
    request = collect_request_items(
        agent, state.items, [ScoredItem(item=off.item, score=0.9), ScoredItem(item=rule_item("also"), score=0.8)]
    )
    assert request.items == ()
    assert [(row.name, row.reason, row.score) for row in request.decisions] == [
        ("gone", "not_found", None),
        ("s__t", "disabled", None),
        ("off", "disabled", 0.9),
        ("also", "not_found", 0.8),
    ]
    assert list_session_items(state, agent)[0] == ResolvedSessionItem(rule_item("gone"), "manual", None)


def test_a_reason_of_the_session_overrides_one_of_the_search():
    off = Rule(name="off", text="", include="agent", enabled=False)
    scored = [ScoredItem(item=off.item, score=0.1, exclusion_reason="below_score")]
    state = apply_changes(BranchState(), add_change(off.item))
    (row,) = collect_request_items(Agent(name="a", rules=(off,)), state.items, scored).decisions
    assert (row.reason, row.slot, row.score) == ("disabled", "system", None)


def test_selected_items_are_sorted_by_score():
    rules = tuple(Rule(name=name, text="", include="agent") for name in "abc")
    scored = [ScoredItem(item=each.item, score=score) for each, score in zip(rules, (0.4, 0.9, 0.4), strict=True)]
    request = collect_request_items(Agent(name="x", rules=rules), (), scored)
    assert [each.item.name for each in request.items] == ["b", "a", "c"]


def test_tools_that_an_earlier_message_brought_are_carried():
    agent = Agent(
        name="a", tools=(make_tool("always"), make_tool("found", include="agent"), make_tool("new", include="agent"))
    )
    always, scored, new = (each.item for each in agent.tools)
    added = [ContextChange(action="add", item=item, include="agent") for item in (scored, always)]
    state = apply_changes(BranchState(), *build_initial_changes(agent), *added)
    request = collect_request_items(agent, state.items, [ScoredItem(item=new, score=0.4)])
    assert [(each.item.name, each.include) for each in request.items] == [
        ("always", "carried"),
        ("found", "carried"),
        ("new", "agent"),
    ]
    without = apply_changes(state, ContextChange(action="remove", item=scored))
    assert scored not in [each.item for each in collect_request_items(agent, without.items).items]


def test_blocks_stand_where_their_items_belong():
    request = (
        RequestItem(item=rule_item("Rule A"), include="always"),
        RequestItem(item=reference_item("Reference X"), include="manual"),
        RequestItem(item=rule_item("Rule C"), include="agent", score=0.9),
        RequestItem(item=reference_item("Reference Y"), include="agent", score=0.8),
    )
    blocks = build_blocks(AGENT, request, read={"errors.md": "Every error has a code."}.__getitem__)
    assert [(block.slot, block.kind, block.name, block.reason, block.is_required, block.score) for block in blocks] == [
        ("system", "rule", "Rule A", "always", True, None),
        ("references", "reference", "Reference X", "manual", True, None),
        ("recall", "rule", "Rule C", "agent", False, 0.9),
        ("recall", "reference", "Reference Y", "agent", False, 0.8),
    ]
    assert [block.text for block in blocks][::3] == ["Answer in English.", "Every error has a code."]


def test_tools_make_no_blocks():
    agent = Agent(name="a", tools=(make_tool("t"),))
    assert build_blocks(agent, [RequestItem(item=agent.tools[0].item, include="always")], read=str) == []


NAMES = st.sampled_from("abcdef")
MODES = st.sampled_from(["always", "manual", "agent"])
DEFINITIONS = {
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
    rules=unique(st.builds(Rule, **DEFINITIONS)),
    references=unique(st.builds(Reference, **DEFINITIONS)),
    tools=unique(st.builds(make_tool, NAMES, include=MODES, enabled=st.booleans())),
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
SCORED_ITEMS = st.lists(
    st.builds(
        ScoredItem,
        item=ITEMS,
        score=st.sampled_from([0.1, 0.5]),
        exclusion_reason=st.sampled_from([None, "below_score"]),
    ),
    unique_by=lambda each: each.item,
    max_size=6,
)


@given(AGENTS, CHANGES, SCORED_ITEMS)
def test_every_candidate_is_in_the_request_or_has_one_decision(
    agent: Agent, changes: list[ContextChange], scored: list[ScoredItem]
):
    state = apply_changes(BranchState(), *build_initial_changes(agent), *changes)
    request = collect_request_items(agent, state.items, scored)
    known = index_agent_items(agent)
    included = [each.item for each in request.items]
    excluded = [(row.kind, row.name) for row in request.decisions]
    assert len(set(included)) == len(included)
    assert len(set(excluded)) == len(excluded)
    named = {(item.type, wire_name(item) if item.type == "tool" else item.name): item for item in (*known, *included)}
    assert not {named.get((what, name or "")) for what, name in excluded} & set(included)
    # A superset of the session's items that exist and are enabled.
    assert set(included) >= {each.item for each in state.items if each.item in known and known[each.item].enabled}
    for item in {each.item for each in state.items} | {each.item for each in scored}:
        label = (item.type, wire_name(item) if item.type == "tool" else item.name)
        assert (item in included) != (label in excluded)
    for item, each in known.items():
        if not each.enabled:
            assert item not in included
    kinds = [each.include for each in request.items]
    assert kinds == sorted(kinds, key=("always", "manual", "carried", "agent").index)
    assert collect_request_items(agent, state.items[::-1], scored[::-1]).items == request.items


def test_two_items_of_one_name_are_refused():
    twice = (Rule(name="a", text="1"), Rule(name="a", text="2"))
    with pytest.raises(ValidationError, match="'a'"):
        Agent(name="x", rules=twice)
    with pytest.raises(ValidationError, match="either `text` or `path`"):
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
    assert wire_name(ContextItem(type="tool", name=name, server=server)) == expected


@pytest.mark.parametrize(
    ("server", "name", "expected"),
    [
        (None, "a__b", "a__b_c8249ad608"),
        ("a_", "b", "a___b_a00766a378"),
        ("my files", "read", "my_files__read_185494807e"),
        ("files", "r" * 70, f"files__{'r' * 46}_dcece64ac6"),
        (None, "read é", "read___29c97c089d"),
    ],
)
def test_other_names_get_a_digest_of_server_and_tool(server: str | None, name: str, expected: str):
    """The literal names are in stored requests, so they must not change."""
    assert wire_name(ContextItem(type="tool", name=name, server=server)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ok-name_1", "ok-name_1"),
        ("mcp.tool/ü", "mcp_tool___428c0fda01"),
        ("a" * 65, f"{'a' * 53}_635361c48b"),
        ("", "_e3b0c44298"),
        ("\ud800", "__91a681b998"),
        ("x y", "x_y_887fcea6a8"),
    ],
)
def test_a_safe_name_is_the_name_or_has_a_digest_of_it(name: str, expected: str):
    assert to_safe_name(name) == expected


TOOL_NAMES = st.text(st.sampled_from("ab_-é. "), min_size=1, max_size=40) | st.text(min_size=1, max_size=90)
TOOLS = st.builds(ContextItem, type=st.just("tool"), name=TOOL_NAMES, server=st.none() | TOOL_NAMES)


@given(st.lists(TOOLS, unique=True, max_size=8))
def test_names_are_valid_for_both_providers_and_read_back(items: list[ContextItem]):
    named = index_by_wire_name(items)
    assert [named[wire_name(item)] for item in items] == items
    assert all(is_valid_name(name) for name in named)


def test_names_that_would_run_together_stay_distinct():
    pairs = [("a__b", "c"), ("a", "b__c"), (None, "a__b__c"), ("a_", "b"), ("a", "_b"), ("", "x"), ("a b", "c")]
    items = [ContextItem(type="tool", name=name, server=server) for server, name in pairs]
    assert len(index_by_wire_name(items)) == len(items)


def test_two_tools_with_one_wire_name_are_refused():
    with pytest.raises(InvalidConfiguration, match="'x'"):
        index_by_wire_name([ContextItem(type="tool", name="x"), ContextItem(type="tool", name="x", server="")])
