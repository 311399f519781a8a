"""What a log should hold after any sequence of acts, kept beside the log and compared with it."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from quire.log import Branch, Store
from quire.model import Body, Compaction, Message, Pin, Restore, Span
from quire.testing.strategies import messages


@dataclass
class Told:
    """What a log should hold, kept beside it: for every branch, all bodies from the first."""

    conversation: str
    branches: list[list[Body]] = field(default_factory=lambda: [[]])

    async def act(self, store: Store, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.branches) - 1), label="branch")
        branch = await store.branch(self.conversation, number)
        acts = ["append", "fork"]
        if branch.head_seq:
            acts += ["compact", "pin"]
        if branch.state.active is not None:
            acts += ["restore", "edit"]
        if (act := data.draw(st.sampled_from(acts), label="act")) == "fork":
            at = data.draw(st.integers(0, branch.head_seq), label="at")
            await store.fork(self.conversation, branch=number, at=at)
            self.branches.append(self.branches[number][:at])
        else:
            bodies = _bodies(act, branch, data)
            await store.append(self.conversation, *bodies, branch=number)
            self.branches[number].extend(bodies)

    async def check_window(self, store: Store, number: int) -> None:
        """The window holds the messages that the active compaction does not cover, and the pins that it does."""
        window = await store.window(self.conversation, branch=number)
        active = window.branch.state.active
        covers = active.covers if active else None
        covered = set(range(covers.first, covers.last + 1)) if covers else set[int]()
        said = {seq for seq, body in enumerate(self.branches[number], 1) if isinstance(body, Message)}
        assert [entry.seq for entry in window.messages] == sorted(said - covered)
        assert [entry.seq for entry in window.pinned] == sorted(set(window.branch.state.pins) & covered)
        if active is not None:
            assert window.compaction is not None
            assert window.compaction.seq == active.seq


def _bodies(act: str, branch: Branch, data: st.DataObject) -> list[Body]:
    active, head = branch.state.active, branch.head_seq
    match act:
        case "append":
            return list(data.draw(st.lists(messages(), min_size=1, max_size=3)))
        case "pin":
            return [Pin(message=data.draw(st.integers(1, head)))]
        case "restore" if active is not None:
            return [Restore(compaction=active.seq)]
        case "edit" if active is not None:
            covers = active.covers
        case _:
            last = data.draw(st.integers(1, head))
            covers = Span(first=data.draw(st.integers(1, last)), last=last)
    number = branch.state.compactions + 1
    return [Compaction(number=number, covers=covers, summary="s", supersedes=active.seq if active else None)]
