"""Batches: the pieces that a view is cut into. A tool-call batch is a call with all its results, never parted.

Histories break off: a process dies between a call and its result. A batch is mended on its way into the view, never in
the log: a missing result gets a stub, a result that nothing asked for is left out.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from quire.model import Message, TextPart, ToolCallPart, ToolResultPart
from quire.view.leaves import Leaf, Meter

NO_RESULT = "[no result was recorded]"


class Batch(NamedTuple):
    leaves: tuple[Leaf, ...]
    tokens: int

    @classmethod
    def of(cls, *leaves: Leaf) -> "Batch":
        return cls(leaves, sum(leaf.tokens for leaf in leaves))

    @property
    def seqs(self) -> list[int]:
        """The numbers of its messages that are in the log."""
        return [leaf.seq for leaf in self.leaves if leaf.seq is not None]

    @property
    def asks(self) -> bool:
        """Whether it begins with what a user said."""
        return self.leaves[0].role == "user"


class Bound(NamedTuple):
    batches: tuple[Batch, ...]
    incomplete: tuple[Leaf, ...]
    """Tool results without their call: no provider takes them."""


def bind(leaves: Sequence[Leaf], meter: Meter) -> Bound:
    """Gathers messages, in their order, into batches."""
    if not any(leaf.calls or leaf.role == "tool" for leaf in leaves):
        # Most histories are plain talk, and this is done for every request.
        return Bound(tuple([Batch((leaf,), leaf.tokens) for leaf in leaves]), ())
    batches: list[Batch] = []
    incomplete: list[Leaf] = []
    place = 0
    while place < len(leaves):
        leaf = leaves[place]
        place += 1
        if leaf.role == "tool":
            incomplete.append(leaf)
        elif not leaf.calls:
            batches.append(Batch((leaf,), leaf.tokens))
        else:
            answers = list(takewhile(lambda each: each.role == "tool", leaves[place:]))
            place += len(answers)
            batch, orphans = _answered(leaf, answers, meter)
            batches.append(batch)
            incomplete.extend(orphans)
    return Bound(tuple(batches), tuple(incomplete))


def _answered(call: Leaf, answers: Sequence[Leaf], meter: Meter) -> tuple[Batch, list[Leaf]]:
    """The call and, of the tool messages after it, what answers it, each call once."""
    ids = list(call.calls)
    fresh = _fresh_ids(ids, taken=set())
    asked = call if fresh == ids else meter.leaf(_renamed(call.message, fresh), seq=call.seq)
    unanswered = list(zip(ids, fresh, strict=True))
    kept: list[Leaf] = [asked]
    orphans: list[Leaf] = []
    for answer in answers:
        results: list[ToolResultPart] = []
        for result in answer.message.tool_results:
            match = next((pair for pair in unanswered if pair[0] == result.call_id), None)
            if match is not None:
                unanswered.remove(match)
                results.append(result.model_copy(update={"call_id": match[1]}))
        if not results:
            orphans.append(answer)
        elif tuple(results) == answer.message.parts:
            kept.append(answer)
        else:
            kept.append(meter.leaf(answer.message.model_copy(update={"parts": tuple(results)}), seq=answer.seq))
    if unanswered:
        kept.append(meter.leaf(Message(role="tool", parts=tuple(_stub(id_) for _, id_ in unanswered))))
    return Batch.of(*kept), orphans


def _stub(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, content=(TextPart(text=NO_RESULT),), is_error=True)


def distinct(batches: Sequence[Batch], meter: Meter) -> list[Batch]:
    """The batches with call ids that differ over the whole request: providers demand it, and models repeat them."""
    if not any(batch.leaves[0].calls for batch in batches):
        return list(batches)
    taken: set[str] = set()
    told_apart: list[Batch] = []
    for batch in batches:
        ids = list(batch.leaves[0].calls)
        if not ids:
            told_apart.append(batch)
            continue
        fresh = _fresh_ids(ids, taken=taken)
        taken.update(fresh)
        told_apart.append(batch if fresh == ids else _rename(batch, dict(zip(ids, fresh, strict=True)), meter))
    return told_apart


def _rename(batch: Batch, names: dict[str, str], meter: Meter) -> Batch:
    call, *answers = batch.leaves
    renamed = [meter.leaf(_renamed(call.message, list(names.values())), seq=call.seq)]
    for answer in answers:
        parts = tuple(part.model_copy(update={"call_id": names[part.call_id]}) for part in answer.message.tool_results)
        renamed.append(meter.leaf(answer.message.model_copy(update={"parts": parts}), seq=answer.seq))
    return Batch.of(*renamed)


def _fresh_ids(ids: Sequence[str], *, taken: set[str]) -> list[str]:
    fresh: list[str] = []
    for id_ in ids:
        name, number = id_, 1
        while name in taken or name in fresh:
            number += 1
            name = f"{id_}-{number}"
        fresh.append(name)
    return fresh


def _renamed(message: Message, ids: Sequence[str]) -> Message:
    names = iter(ids)
    parts = tuple(
        part.model_copy(update={"id": next(names)}) if isinstance(part, ToolCallPart) else part
        for part in message.parts
    )
    return message.model_copy(update={"parts": parts})


def newest_turn(batches: Sequence[Batch]) -> int:
    """Where the newest turn begins: at the last thing a user said, with the tool loop that follows it."""
    return next((place for place in range(len(batches) - 1, -1, -1) if batches[place].asks), 0)


def leaves_of(batches: Iterable[Batch]) -> list[Leaf]:
    return [leaf for batch in batches for leaf in batch.leaves]
