"""Rules, references and tools at three levels: available to the agent, in the session, in the request.

A request has the items of the session and those selected for its message. The session changes only by entries of the
log, so an item that was removed stays removed. Invariant: every candidate is either an item of the request or has a
decision.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, assert_never

from quire.context.selection import ScoredItem
from quire.errors import InvalidConfiguration
from quire.model import BranchState, ContextChange, ContextItem, Decision, SessionItem, Slot
from quire.model.agents import Agent, AgentTool, IncludeMode, Reference, Rule
from quire.model.base import FrozenModel
from quire.model.entry_bodies import SessionIncludeMode
from quire.model.manifest import DecisionReason
from quire.view.inputs import ContextBlock
from quire.wire.fields import add_name_digest, is_valid_name

AgentItem = Rule | Reference | AgentTool
InclusionReason = Literal["always", "manual", "agent", "carried"]

SERVER_SEPARATOR = "__"
_TYPE_ORDER = ("rule", "reference", "tool")
_INCLUSION_ORDER: tuple[InclusionReason, ...] = ("always", "manual", "carried", "agent")


class ResolvedSessionItem(NamedTuple):
    """An item of the session with the agent's definition of it, or None if the agent no longer has one."""

    item: ContextItem
    include: SessionIncludeMode
    definition: AgentItem | None


class RequestItem(FrozenModel):
    """An item of a request, the reason for its inclusion, and its score if selection added it."""

    item: ContextItem
    include: InclusionReason
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RequestItems:
    """Items in request order; `decisions` has one for each excluded item."""

    items: tuple[RequestItem, ...] = ()
    decisions: tuple[Decision, ...] = ()


def index_agent_items(agent: Agent) -> dict[ContextItem, AgentItem]:
    return {known.item: known for known in (*agent.rules, *agent.references, *agent.tools)}


def get_include_mode(agent: Agent, definition: AgentItem) -> IncludeMode:
    return agent.include_mode_of(definition) if isinstance(definition, AgentTool) else definition.include


def build_initial_changes(agent: Agent) -> list[ContextChange]:
    """The changes that add the enabled `always` items to a new session."""
    definitions = [
        each for each in index_agent_items(agent).values() if each.enabled and get_include_mode(agent, each) == "always"
    ]
    items = sorted((each.item for each in definitions), key=_priority_key(agent))
    return [ContextChange(action="add", item=item, include="always") for item in items]


def list_session_items(state: BranchState, agent: Agent) -> list[ResolvedSessionItem]:
    """The session in display order: always, then manual, each by priority and name."""
    definitions = index_agent_items(agent)
    priority = _priority_key(agent)
    ordered = sorted(
        state.items, key=lambda each: (_INCLUSION_ORDER.index(_inclusion_reason(each)), priority(each.item))
    )
    return [ResolvedSessionItem(each.item, each.include, definitions.get(each.item)) for each in ordered]


def collect_request_items(
    agent: Agent,
    session: Sequence[SessionItem],
    scored: Sequence[ScoredItem] = (),
    *,
    removed: Collection[ContextItem] = (),
) -> RequestItems:
    """Combines the session's items with those selected for the message.

    Every other item of the agent is excluded with a reason. `removed` were removed from the session.
    """
    definitions = index_agent_items(agent)
    included: dict[ContextItem, RequestItem] = {}
    excluded: dict[ContextItem, Decision] = {}
    for each in session:
        item = each.item
        if (reason := _unusable_reason(definitions.get(item))) is not None:
            excluded.setdefault(item, build_exclusion(item, reason))
        else:
            included.setdefault(item, RequestItem(item=item, include=_inclusion_reason(each)))
    for each in scored:
        if each.item in included or each.item in excluded:
            continue
        if (reason := each.exclusion_reason or _unusable_reason(definitions.get(each.item))) is not None:
            excluded[each.item] = build_exclusion(each.item, reason, score=each.score, min_score=each.min_score)
        else:
            included[each.item] = RequestItem(item=each.item, include="agent", score=each.score)
    for item, each in definitions.items():
        if item not in included and item not in excluded:
            if not each.enabled:
                excluded[item] = build_exclusion(item, "disabled")
            elif item in removed:
                excluded[item] = build_exclusion(item, "removed")
            elif get_include_mode(agent, each) == "agent":
                # Without a question there is nothing to match.
                excluded[item] = build_exclusion(item, "below_score", score=0.0)
            else:
                excluded[item] = build_exclusion(item, "not_added")
    priority = _priority_key(agent)
    ordered = sorted(
        included.values(),
        key=lambda each: (_INCLUSION_ORDER.index(each.include), -(each.score or 0), priority(each.item)),
    )
    return RequestItems(tuple(ordered), tuple(excluded.values()))


def build_blocks(agent: Agent, items: Iterable[RequestItem], *, read: Callable[[str], str]) -> list[ContextBlock]:
    """Context blocks of rules and references. `read` returns the text of a reference that has only a path.

    Items of the session are in the stable part. Items selected for this message come after it.
    """
    definitions = index_agent_items(agent)
    blocks: list[ContextBlock] = []
    for each in items:
        match definitions[each.item]:
            case Rule(name=name, text=text):
                pass
            case Reference(name=name, text=text, path=path):
                text = text if text is not None else read(path or name)
            case AgentTool():
                continue
        selected = each.include == "agent"
        blocks.append(
            ContextBlock(
                slot=slot_for(each.item, selected=selected),
                kind=each.item.type,
                name=name,
                text=text,
                reason=each.include,
                score=each.score,
                is_required=not selected,
            )
        )
    return blocks


def build_exclusion(
    item: ContextItem,
    reason: DecisionReason,
    *,
    score: float | None = None,
    min_score: float | None = None,
    tokens: int = 0,
) -> Decision:
    selected = score is not None
    return Decision(
        slot=slot_for(item, selected=selected),
        kind=item.type,
        included=False,
        reason=reason,
        tokens=tokens,
        name=decision_name(item),
        score=score,
        min_score=min_score,
    )


def decision_name(item: ContextItem) -> str:
    """Name of an item in the decisions of a manifest."""
    return wire_name(item) if item.type == "tool" else item.name


def slot_for(item: ContextItem, *, selected: bool) -> Slot:
    """The slot of an item. A `selected` one is included for this message alone."""
    match item.type:
        case "tool":
            return "tools"
        case "rule":
            return "recall" if selected else "system"
        case "reference":
            return "recall" if selected else "references"
    assert_never(item.type)


def _inclusion_reason(each: SessionItem) -> InclusionReason:
    """`carried` for a tool that an earlier message or a `tool_search` added to the session."""
    return "carried" if each.include == "agent" else each.include


def _unusable_reason(definition: AgentItem | None) -> DecisionReason | None:
    if definition is None:
        return "not_found"
    return None if definition.enabled else "disabled"


def _priority_key(agent: Agent) -> Callable[[ContextItem], tuple[int, str, int, str]]:
    """Sort key: highest priority first, then name."""
    definitions = index_agent_items(agent)

    def sort_key(item: ContextItem) -> tuple[int, str, int, str]:
        priority = getattr(definitions.get(item), "priority", 0)
        return -priority, item.name, _TYPE_ORDER.index(item.type), item.server or ""

    return sort_key


def wire_name(item: ContextItem) -> str:
    """Name of a tool in requests: `server__tool`, or the bare name of a tool without a server.

    A name that a provider would reject, or that is ambiguous, gets a digest. It depends on the tool and its server
    alone, so it is stable whatever other tools a request has.
    """
    server, name = item.server or "", item.name
    joined = f"{server}{SERVER_SEPARATOR}{name}" if server else name
    # The first separator must split server and tool, or `a__b` of `c` and `b__c` of `a` would collide.
    unambiguous = joined.find(SERVER_SEPARATOR) == (len(server) if server else -1)
    return joined if unambiguous and is_valid_name(joined) else add_name_digest(joined, key=f"{server}\0{name}")


def index_by_wire_name(items: Iterable[ContextItem]) -> dict[str, ContextItem]:
    """Maps each wire name to its tool. Raises `InvalidConfiguration` where two collide."""
    tools: dict[str, ContextItem] = {}
    for item in items:
        name = wire_name(item)
        if tools.setdefault(name, item) != item:
            raise InvalidConfiguration(f"Two tools would be called {name!r}: {tools[name]} and {item}; rename one.")
    return tools
