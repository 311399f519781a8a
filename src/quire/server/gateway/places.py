"""Recognise: the conversation and the place in it where a client's list goes on.

By the header that names it, else by the path of its messages. What leaves the stored line before its head becomes a
branch. Nothing is written here but the row of such a branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from quire.errors import BranchNotFound
from quire.log import MAIN, Branch, Recognised, Store
from quire.log.fresh import new_id
from quire.model import ROOT, Entry
from quire.server.gateway.asking import Asking
from quire.server.gateway.lines import Line, known_form, told_paths
from quire.server.gateway.overlap import Overlap, find_overlap
from quire.server.gateway.recent import Recent

REMEMBERED = 10_000
"""So many places are kept at hand."""
LOOKED_AT, BEYOND = 200, 16
"""At most so many of the newest messages are held against a list that does not begin where the log does; as many as the
list has, and a few beyond, for a client that takes back what was said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    conversation: str
    branch: int = MAIN
    head: int = 0
    """The newest entry before what the client adds."""
    after: bytes = ROOT
    """The path of the message that it is added to."""
    first: int = 0
    """The first line of the client's list that is stored; what stands before it is of its own making."""
    known: int = 0
    """The first line that is not."""
    spans: tuple[int, int] | None = None
    """The entries that the stored lines are."""
    told: bytes | None = ROOT
    """The client's path after the stored lines; None where its list does not begin with the conversation."""
    listed: tuple[int, str] | None = None
    """Tokens of the stored lines and who counted them, where they are on record."""
    run: tuple[Entry, ...] = ()
    """Those entries, where they were read to find the place."""
    opens: bool = False
    """The conversation is not there yet."""
    leans: bool = False
    """The client sends only what is new, and leaves the history to Quire."""


@dataclass(frozen=True, slots=True)
class Named:
    """What the headers of a request name."""

    conversation: str | None = None
    branch: int | None = None


class Heads:
    """Where the conversations of this process stand that it answered last, so that their next turn need not ask.

    Only where a line ends, and only if the client adds no reply to it: that would be another node's. The store knows
    what else is there. If someone has gone on meanwhile, the turn finds that out when it is recorded, as a branch.
    """

    def __init__(self) -> None:
        self._places: Recent[tuple[str, bytes], Place] = Recent(REMEMBERED)

    def find(self, tenant: str, lines: Sequence[Line], told: Sequence[bytes], named: Named) -> Place | None:
        for known in range(len(lines), 0, -1):
            if lines[known - 1].role == "assistant":
                place = self._places.get((tenant, told[known - 1]))
                return place if place is not None and named.conversation in (None, place.conversation) else None
        return None

    def moved(self, tenant: str, before: bytes | None, place: Place) -> None:
        if before is not None:
            self._places.drop((tenant, before))
        if place.told is not None:
            self._places.put((tenant, place.told), place)


async def recognise(store: Store, asking: Asking, named: Named, *, heads: Heads, tenant: str) -> Place:
    told = told_paths(asking.lines)
    at_hand = heads.find(tenant, asking.lines, told, named)
    if at_hand is not None:
        return at_hand
    found = await store.recognise(told, conversation=named.conversation)
    if found is not None and found.length and _counts(found, asking.lines, named):
        return await _going_on(store, found, told)
    if named.conversation is None or found is None:
        return Place(conversation=named.conversation or new_id(), opens=True)
    branch = await _branch_in_use(store, found, named)
    if branch.head_seq == 0:
        return Place(conversation=branch.conversation, branch=branch.number, after=branch.head_path)
    return await _in_window(store, branch, asking.lines)


def _counts(found: Recognised, lines: Sequence[Line], named: Named) -> bool:
    """What users say first, they say often: alone it tells no conversation, and in a named one no place far back."""
    if any(line.role == "assistant" for line in lines[: found.length]):
        return True
    if named.conversation is None:
        return False
    return found.branch.head_seq - found.seq <= 1


async def _branch_in_use(store: Store, found: Recognised, named: Named) -> Branch:
    if named.branch is not None:
        return await store.branch(found.branch.conversation, named.branch)
    if found.length == 0:
        return found.branch
    in_use = await store.recognise((), conversation=found.branch.conversation)
    if in_use is None:
        raise BranchNotFound
    return in_use.branch


async def _going_on(store: Store, found: Recognised, told: Sequence[bytes]) -> Place:
    """The client's list begins as the stored line does."""
    branch, path = found.branch, told[found.length - 1]
    if not (branch.head_seq == found.seq or branch.head_path == path or await _is_head(store, branch, found.seq)):
        branch = await _forked(store, branch, found.seq)
    return Place(
        conversation=branch.conversation,
        branch=branch.number,
        head=branch.head_seq,
        after=branch.head_path,
        known=found.length,
        spans=(1, found.seq),
        told=path,
        listed=_listed(found.manifest),
    )


async def _is_head(store: Store, branch: Branch, seq: int) -> bool:
    """Whether no message comes after this one; a compaction or a pin may."""
    later = await store.tail(branch.conversation, 1, branch=branch.number, kinds=["message"])
    return bool(later) and later[-1].seq == seq


async def _forked(store: Store, branch: Branch, at: int) -> Branch:
    """A branch that leaves the line here; one that somebody began and got no reply for serves again."""
    left = (branch.holder(at), at)
    for each in await store.branches(branch.conversation):
        if each.head_seq == at and each.lineage and each.lineage[-1] == left:
            return each
    return await store.fork(branch.conversation, at=at, branch=branch.number)


async def _in_window(store: Store, branch: Branch, lines: Sequence[Line]) -> Place:
    """The client's list is a window of its own making on the conversation, or has nothing of it but what is new."""
    stored: list[Entry] = []
    if any(line.role == "assistant" for line in lines):
        reach = min(LOOKED_AT, len(lines) + BEYOND)
        stored = await store.tail(branch.conversation, reach, branch=branch.number, kinds=["message"])
    overlap = _overlap(lines, stored)
    if overlap is None:
        return Place(
            conversation=branch.conversation,
            branch=branch.number,
            head=branch.head_seq,
            after=branch.head_path,
            told=None,
            leans=True,
        )
    run = stored[overlap.place - (overlap.last - overlap.first) : overlap.place + 1]
    last = run[-1]
    if overlap.place < len(stored) - 1:
        branch = await _forked(store, branch, last.seq)
    return Place(
        conversation=branch.conversation,
        branch=branch.number,
        head=branch.head_seq,
        after=branch.head_path,
        first=overlap.first,
        known=overlap.last + 1,
        spans=(run[0].seq, last.seq),
        run=tuple(run),
        told=None,
    )


def _overlap(lines: Sequence[Line], stored: Sequence[Entry]) -> Overlap | None:
    newest = lines[-LOOKED_AT:]
    dropped = len(lines) - len(newest)
    keys = [known_form(entry.message).canonical().encode() for entry in stored]
    found = find_overlap([line.key for line in newest], keys, replies=[line.role == "assistant" for line in newest])
    return found and Overlap(found.first + dropped, found.last + dropped, found.place)


def _listed(manifest: str | None) -> tuple[int, str] | None:
    """What a client's list up to this reply comes to, from the record of its request."""
    if manifest is None:
        return None
    record: dict[str, Any] = from_json(manifest)
    listed = record.get("sent", {}).get("listed")
    return (listed, record["counter"]) if listed is not None else None
