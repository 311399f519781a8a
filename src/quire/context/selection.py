"""Which of the agent-mode items a message calls for, by likeness of words and, with an embedder, of meaning.

Every candidate gets a score from 0 to 1 and a verdict. Scores are rounded and ties go by name, so that the same message
over the same items gives the same choice. Where an endpoint is out of reach, words alone decide.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from quire.context.overlap import EARLIER, READ, Described, overlap
from quire.errors import ModelError
from quire.llm.embeddings import Embedder, embedded
from quire.model import ContextItem
from quire.model.agents import Agent, OfferedTool, Reference, Rule
from quire.model.value import Value

if TYPE_CHECKING:
    from quire.llm.embeddings import Vectors

DIGITS = 4
BEGINNING = 400
"""Characters of an item's text that are looked at besides its name and description."""
WORDS, MEANING = 0.5, 0.5
"""What the two likenesses weigh where there are both."""
_CACHED = 10_000


class SelectionSettings(Value):
    """How many items a message may bring in.

    The least score was chosen on the examples in the tests. The two counts are caps on cost: those examples never
    reach them, so they say nothing on what the best would be.
    """

    top_k: int = Field(default=8, ge=0, description="At most so many items in all.")
    top_n: int = Field(default=3, ge=0, description="At most so many of one type: rules, references, tools.")
    min_score: float = Field(default=0.35, ge=0, le=1, description="Only items with at least this score.")


@dataclass(frozen=True, slots=True)
class Candidate:
    item: ContextItem
    described: Described

    @property
    def text(self) -> str:
        """What stands for the item where meanings are compared: its description, else how it begins."""
        name = self.described.name.replace("_", " ").replace("-", " ")
        return f"{name}: {self.described.description or self.described.text}"


class Found(Value):
    """A candidate with its score, and whether it comes in; `left_out` says why it does not."""

    item: ContextItem
    score: float
    left_out: Literal["below_score", "over_budget"] | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """All candidates, the best first."""

    found: tuple[Found, ...] = ()
    by: Literal["words", "meaning"] = "words"

    @property
    def chosen(self) -> tuple[Found, ...]:
        return tuple(each for each in self.found if each.left_out is None)


def candidate(known: Rule | Reference | OfferedTool) -> Candidate:
    match known:
        case OfferedTool(definition=definition):
            described = Described(definition.name, definition.description, known.server or "")
        case Rule() | Reference():
            described = Described(known.name, known.description, (known.text or "")[:BEGINNING])
    return Candidate(known.item, described)


def candidates(agent: Agent, *, present: Iterable[ContextItem] = ()) -> list[Candidate]:
    """The items that only a message can bring in: in mode `agent`, switched on, and not in the session yet."""
    there = set(present)
    texts = [known for known in (*agent.rules, *agent.references) if known.include == "agent"]
    tools = [tool for tool in agent.tools if agent.include_of(tool) == "agent"]
    return [candidate(known) for known in (*texts, *tools) if known.enabled and known.item not in there]


def choose(scores: Mapping[ContextItem, float], settings: SelectionSettings) -> tuple[Found, ...]:
    """All of them in order of their scores, each with its verdict."""
    taken: Counter[str] = Counter()
    found: list[Found] = []
    for item, score in sorted(scores.items(), key=lambda scored: (-scored[1], *_by_name(scored[0]))):
        left_out = None
        if score < settings.min_score:
            left_out = "below_score"
        elif taken.total() >= settings.top_k or taken[item.type] >= settings.top_n:
            left_out = "over_budget"
        else:
            taken[item.type] += 1
        found.append(Found(item=item, score=score, left_out=left_out))
    return tuple(found)


def _by_name(item: ContextItem) -> tuple[str, str, str]:
    return item.name, item.server or "", item.type


class Selector:
    """Scores items for messages, and keeps the items' vectors by the digest of their text."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self.embedder = embedder
        self._vectors: dict[str, Vectors] = {}

    async def select(
        self,
        message: str,
        items: Sequence[Candidate],
        *,
        recent: Sequence[str] = (),
        settings: SelectionSettings | None = None,
    ) -> Selection:
        """`recent` are the turns before the message, the latest first: a short message may only go on from them."""
        scores, by = await self.scores(message, items, recent=recent)
        return Selection(choose(scores, settings or SelectionSettings()), by)

    async def scores(
        self, message: str, items: Sequence[Candidate], *, recent: Sequence[str] = ()
    ) -> tuple[dict[ContextItem, float], Literal["words", "meaning"]]:
        words = overlap(message, [each.described for each in items], recent=recent)
        meaning = await self._likeness(message, items, recent)
        if meaning is None:
            fused = words
        else:
            fused = [WORDS * word + MEANING * like for word, like in zip(words, meaning, strict=True)]
        rounded = {each.item: round(score, DIGITS) for each, score in zip(items, fused, strict=True)}
        return rounded, "words" if meaning is None else "meaning"

    async def _likeness(self, message: str, items: Sequence[Candidate], recent: Sequence[str]) -> list[float] | None:
        """Cosines from 0 to 1; None where there is no embedder, or none within reach."""
        if self.embedder is None or not items:
            return None
        import numpy as np

        try:
            rows = await self._item_rows(self.embedder, [each.text for each in items])
            asked = await embedded(self.embedder, [turn[:READ] for turn in (message, *recent)])
        except ModelError:
            return None
        weights = np.array([1.0, *(EARLIER / 2**age for age in range(len(recent)))])
        question = weights @ asked.astype(np.float64)
        length = float(np.linalg.norm(question))
        likeness = rows.astype(np.float64) @ question / (length or 1.0)
        return [float(each) for each in np.clip(likeness, 0.0, 1.0)]

    async def _item_rows(self, embedder: Embedder, texts: Sequence[str]) -> "Vectors":
        import numpy as np

        keys = [sha256(f"{embedder.name}\n{text}".encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors}
        if missing:
            rows = await embedded(embedder, list(missing.values()))
            if len(self._vectors) + len(missing) > _CACHED:
                self._vectors = {key: self._vectors[key] for key in keys if key in self._vectors}
            self._vectors |= dict(zip(missing, rows, strict=True))
        return np.stack([self._vectors[key] for key in keys])
