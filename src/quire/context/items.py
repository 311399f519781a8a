"""Rules, references and tools on their way into a request: available to the agent, in the session, in the request.

A request's items are the session's, and what its message calls for besides. The session changes only by what the log
says, so an item that was taken out stays out. Every candidate is either an item of the request or has a decision.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, assert_never

from quire.context.names import sent_name
from quire.context.selection import Found
from quire.model import BranchState, ContextChange, ContextItem, Decision, SessionItem, Slot
from quire.model.agents import Agent, Include, OfferedTool, Reference, Rule
from quire.model.entries import SessionInclude
from quire.model.manifest import Reason
from quire.model.value import Value
from quire.view.material import Block

Available = Rule | Reference | OfferedTool
Entered = Literal["always", "manual", "agent", "carried"]

_TYPES = ("rule", "reference", "tool")
_ENTERED: tuple[Entered, ...] = ("always", "manual", "carried", "agent")


class InSession(NamedTuple):
    """An item of the session, and what the agent has under its name: None if it is gone."""

    item: ContextItem
    include: SessionInclude
    known: Available | None


class RequestItem(Value):
    """An item in one request, how it came in, and the score where a search brought it."""

    item: ContextItem
    include: Entered
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RequestItems:
    """In the order in which they stand; `decided` has what was left out, and why."""

    items: tuple[RequestItem, ...] = ()
    decided: tuple[Decision, ...] = ()

    def of_type(self, type: Literal["rule", "reference", "tool"]) -> tuple[RequestItem, ...]:
        return tuple(each for each in self.items if each.item.type == type)


def available(agent: Agent) -> dict[ContextItem, Available]:
    return {known.item: known for known in (*agent.rules, *agent.references, *agent.tools)}


def mode_of(agent: Agent, known: Available) -> Include:
    return agent.include_of(known) if isinstance(known, OfferedTool) else known.include


def initial_changes(agent: Agent) -> list[ContextChange]:
    """What a new session begins with: all that is always there."""
    known = [known for known in available(agent).values() if known.enabled and mode_of(agent, known) == "always"]
    items = sorted((each.item for each in known), key=_stable(agent))
    return [ContextChange(action="add", item=item, include="always") for item in items]


def items_in_session(state: BranchState, agent: Agent) -> list[InSession]:
    """The session as people are shown it: always, then manual, each by priority and name."""
    known = available(agent)
    stable = _stable(agent)
    ordered = sorted(state.items, key=lambda each: (_ENTERED.index(_entered(each)), stable(each.item)))
    return [InSession(each.item, each.include, known.get(each.item)) for each in ordered]


def request_items(agent: Agent, session: Sequence[SessionItem], found: Sequence[Found] = ()) -> RequestItems:
    """The session's items and what the message calls for."""
    known = available(agent)
    entered: dict[ContextItem, RequestItem] = {}
    decided: dict[ContextItem, Decision] = {}
    for each in session:
        item = each.item
        if (fault := _unusable(known.get(item))) is not None:
            decided.setdefault(item, left_out(item, fault))
        else:
            entered.setdefault(item, RequestItem(item=item, include=_entered(each)))
    for each in found:
        if each.item in entered or each.item in decided:
            continue
        if (fault := each.left_out or _unusable(known.get(each.item))) is not None:
            decided[each.item] = left_out(each.item, fault, score=each.score)
        else:
            entered[each.item] = RequestItem(item=each.item, include="agent", score=each.score)
    for item, each in known.items():
        if item not in entered and item not in decided and (not each.enabled or mode_of(agent, each) == "always"):
            decided[item] = left_out(item, "disabled")
    return RequestItems(_ordered(agent, entered.values()), tuple(decided.values()))


def blocks(agent: Agent, items: Iterable[RequestItem], *, read: Callable[[str], str]) -> list[Block]:
    """Rules and references as the view takes them. `read` gives the text of a reference that has only a path.

    What the session holds stands in the stable part; what was found for this message, after it.
    """
    known = available(agent)
    made: list[Block] = []
    for each in items:
        match known[each.item]:
            case Rule(name=name, text=text):
                pass
            case Reference(name=name, text=text, path=path):
                text = text if text is not None else read(path or name)
            case OfferedTool():
                continue
        chosen = each.include == "agent"
        made.append(
            Block(
                slot=slot_of(each.item, chosen=chosen),
                what=each.item.type,
                name=name,
                text=text,
                reason=each.include,
                score=each.score,
                required=not chosen,
            )
        )
    return made


def left_out(item: ContextItem, reason: Reason, *, score: float | None = None, tokens: int = 0) -> Decision:
    name = sent_name(item) if item.type == "tool" else item.name
    chosen = score is not None
    return Decision(
        slot=slot_of(item, chosen=chosen),
        what=item.type,
        included=False,
        reason=reason,
        tokens=tokens,
        name=name,
        score=score,
    )


def slot_of(item: ContextItem, *, chosen: bool) -> Slot:
    """Where an item stands; `chosen` says that it is there for this message alone."""
    match item.type:
        case "tool":
            return "tools"
        case "rule":
            return "recall" if chosen else "system"
        case "reference":
            return "recall" if chosen else "references"
    assert_never(item.type)


def _entered(each: SessionItem) -> Entered:
    """A tool that an earlier message or a search of the model's brought in is carried on."""
    return "carried" if each.include == "agent" else each.include


def _unusable(known: Available | None) -> Reason | None:
    if known is None:
        return "not_found"
    return None if known.enabled else "disabled"


def _ordered(agent: Agent, items: Iterable[RequestItem]) -> tuple[RequestItem, ...]:
    stable = _stable(agent)
    return tuple(sorted(items, key=lambda each: (_ENTERED.index(each.include), -(each.score or 0), stable(each.item))))


def _stable(agent: Agent) -> Callable[[ContextItem], tuple[int, str, int, str]]:
    """By priority, the highest first, then by name."""
    known = available(agent)

    def place(item: ContextItem) -> tuple[int, str, int, str]:
        priority = getattr(known.get(item), "priority", 0)
        return -priority, item.name, _TYPES.index(item.type), item.server or ""

    return place
