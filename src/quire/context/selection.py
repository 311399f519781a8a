"""Selects the agent-mode items for a message by keyword score and, with an embedder, by cosine similarity.

Keyword scores from 0 to 1 need no model: tokenizer, stop words, stemmer, IDF. A rare word weighs more than a common
one, as in BM25. A match in a name counts more than one in a description or text. A paraphrase shares no word with its
item, so an item whose similarity is an outlier among all items has a score by that alone. Every candidate is included
or excluded with a reason. Scores are rounded and ties go by name, so that selection is deterministic in any order. If
the embedding endpoint fails, selection falls back to keywords alone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from math import log, sqrt
from typing import TYPE_CHECKING, Literal, NamedTuple

from cachetools import LRUCache
from pydantic import Field

from quire.errors import ModelError
from quire.llm.embeddings import Embedder, embed_texts
from quire.model import ContextItem
from quire.model.agents import Agent, AgentTool, Reference, Rule
from quire.model.base import FrozenModel
from quire.model.manifest import LearnedRank

if TYPE_CHECKING:
    from quire.llm.embeddings import Vectors

NAME_WEIGHT, DESCRIPTION_WEIGHT, TEXT_WEIGHT = 1.0, 0.9, 0.5
"""Weight of a match by field."""
UNKNOWN_TERM_WEIGHT = 0.25
"""Weight of a query term that no text has: it shows that the message is also about something else."""
MAX_SCORED_TERMS = 8
"""Number of heaviest query terms that make a full score; without a cap nothing would match a long message."""
RECENT_TURN_WEIGHT = 0.25
"""Weight of the terms of the previous turn, relative to the message's own; halved for each turn before that."""
MAX_MESSAGE_CHARS = 4_000
"""Characters of a message that are scored."""

_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
_REQUEST_WORDS = "give go good make morning need new now one please show tell through use want while"
"""Words of any request, which say nothing about its subject."""


@cache
def _list_request_terms() -> frozenset[str]:
    from quire.search.tokenizer import tokenize

    return frozenset(tokenize(_REQUEST_WORDS))


class SearchableText(NamedTuple):
    """The searched fields of an item; `text` is the start of its text."""

    name: str
    description: str
    text: str = ""


def extract_keywords(text: str) -> list[str]:
    """Terms of an item's text; `readFile` and `read_file` are two words each."""
    from quire.search.tokenizer import tokenize

    ignored = _list_request_terms()
    return [term for term in tokenize(_CAMEL_CASE_BOUNDARY.sub(" ", text)) if term not in ignored]


def _extract_query_keywords(message: str) -> list[str]:
    from quire.search.tokenizer import tokenize_query

    ignored = _list_request_terms()
    query = _CAMEL_CASE_BOUNDARY.sub(" ", message[:MAX_MESSAGE_CHARS])
    return [term for term in tokenize_query(query) if term not in ignored]


def score_keywords(message: str, texts: Sequence[SearchableText], *, recent: Sequence[str] = ()) -> list[float]:
    """Share of the message's term weight that each text covers. `recent` are earlier turns, the latest first."""
    fields = [_term_weights(text) for text in texts]
    frequencies = Counter(term for field_weights in fields for term in field_weights)
    query = dict.fromkeys(_extract_query_keywords(message), 1.0)
    for age, turn in enumerate(recent):
        for term in _extract_query_keywords(turn):
            query.setdefault(term, RECENT_TURN_WEIGHT / 2**age)
    weights: dict[str, float] = {}
    for term, weight in query.items():
        frequency = frequencies[term]
        weights[term] = weight * log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
    known = [weight if frequencies[term] else UNKNOWN_TERM_WEIGHT * weight for term, weight in weights.items()]
    total = sum(sorted(known, reverse=True)[:MAX_SCORED_TERMS])
    if not total:
        return [0.0] * len(texts)
    return [
        min(1.0, sum(weight * field_weights.get(term, 0.0) for term, weight in weights.items()) / total)
        for field_weights in fields
    ]


@lru_cache(maxsize=10_000)
def _term_weights(text: SearchableText) -> dict[str, float]:
    """The best field weight of each term of a text."""
    weights = dict.fromkeys(extract_keywords(text.text), TEXT_WEIGHT)
    weights |= dict.fromkeys(extract_keywords(text.description), DESCRIPTION_WEIGHT)
    return weights | dict.fromkeys(extract_keywords(text.name), NAME_WEIGHT)


SCORE_DECIMALS = 4
MAX_ITEM_TEXT_CHARS = 400
"""Characters of an item's text that are scored, in addition to its name and description."""
KEYWORD_WEIGHT, EMBEDDING_WEIGHT = 0.5, 0.5
"""Weights of the two scores where both exist."""
DEFAULT_MIN_SCORE = 0.35
SIMILARITY_NOISE = 0.07
"""Standard deviation of the similarities between a message and unrelated items."""
MIN_SIMILARITY_LEAD = 0.03
"""Difference to the second similarity below which no item is an outlier."""
_MAX_CACHED_VECTORS = 10_000
"""Vectors of items in the LRU cache."""


class SelectionSettings(FrozenModel):
    """Limits on the items that a message may add.

    `min_score` was tuned on the cases in the tests. The two counts are caps on cost: those cases never reach them, so
    they say nothing about the best values.
    """

    top_k: int = Field(default=8, ge=0, description="Maximum items of all types.")
    top_k_per_type: int = Field(default=3, ge=0, description="Maximum items of one type: rules, references, tools.")
    min_score: float = Field(default=DEFAULT_MIN_SCORE, ge=0, le=1, description="Minimum score of a selected item.")


@dataclass(frozen=True, slots=True)
class ItemCandidate:
    item: ContextItem
    searchable: SearchableText

    @property
    def embedding_text(self) -> str:
        """Text that is embedded for the item: its name with its description, or else the start of its text."""
        name = self.searchable.name.replace("_", " ").replace("-", " ")
        return f"{name}: {self.searchable.description or self.searchable.text}"


class ScoredItem(FrozenModel):
    """A candidate with its score. It is selected unless it has an `exclusion_reason`."""

    item: ContextItem
    score: float
    exclusion_reason: Literal["below_score", "over_budget"] | None = None
    min_score: float | None = None
    """Minimum score of a selected item, where this one is `below_score`."""


@dataclass(frozen=True, slots=True)
class ItemSelection:
    """All candidates, best first."""

    scored: tuple[ScoredItem, ...] = ()
    method: Literal["keyword", "embedding"] = "keyword"

    @property
    def selected(self) -> tuple[ScoredItem, ...]:
        return tuple(each for each in self.scored if each.exclusion_reason is None)


def to_candidate(item: Rule | Reference | AgentTool) -> ItemCandidate:
    match item:
        case AgentTool(definition=definition):
            searchable = SearchableText(definition.name, definition.description, item.server or "")
        case Rule() | Reference():
            searchable = SearchableText(item.name, item.description, (item.text or "")[:MAX_ITEM_TEXT_CHARS])
    return ItemCandidate(item.item, searchable)


def list_candidates(agent: Agent, *, session_items: Iterable[ContextItem] = ()) -> list[ItemCandidate]:
    """Items that only a message can add: in mode `agent`, enabled, and not in the session yet."""
    present = set(session_items)
    texts = [known for known in (*agent.rules, *agent.references) if known.include == "agent"]
    tools = [tool for tool in agent.tools if agent.include_mode_of(tool) == "agent"]
    return [to_candidate(known) for known in (*texts, *tools) if known.enabled and known.item not in present]


def select_items(scores: Mapping[ContextItem, float], settings: SelectionSettings) -> tuple[ScoredItem, ...]:
    """All items by descending score, each selected or with the reason for its exclusion."""
    selected: Counter[str] = Counter()
    results: list[ScoredItem] = []
    ordered = sorted(scores, key=lambda item: (-scores[item], item.name, item.server or "", item.type))
    for item in ordered:
        score = scores[item]
        reason = min_score = None
        if score < settings.min_score:
            reason, min_score = "below_score", settings.min_score
        elif selected.total() >= settings.top_k or selected[item.type] >= settings.top_k_per_type:
            reason = "over_budget"
        else:
            selected[item.type] += 1
        results.append(ScoredItem(item=item, score=score, exclusion_reason=reason, min_score=min_score))
    return tuple(results)


def score_outlier(similarities: Sequence[float]) -> list[float]:
    """Scores the item whose similarity is an outlier among all items. The others have 0.

    Its similarity is compared with the mean of the others: absolute similarities differ between embedders. The default
    minimum score is what the best of as many unrelated items reaches by chance: their expected maximum.
    """
    scores = [0.0] * len(similarities)
    if len(scores) < 2:
        return scores
    best, second = sorted(range(len(scores)), key=lambda index: -similarities[index])[:2]
    if similarities[best] - similarities[second] >= MIN_SIMILARITY_LEAD:
        others = len(scores) - 1
        contrast = similarities[best] - (sum(similarities) - similarities[best]) / others
        chance = SIMILARITY_NOISE * sqrt(2 * log(len(scores)) * (1 + 1 / others))
        scores[best] = min(1.0, DEFAULT_MIN_SCORE * contrast / chance)
    return scores


class Selector:
    """Scores items for messages, and caches the vectors of items by the digest of their text."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self.embedder = embedder
        self._vectors: LRUCache[str, Vectors] = LRUCache(_MAX_CACHED_VECTORS)

    async def select(
        self,
        message: str,
        items: Sequence[ItemCandidate],
        *,
        recent: Sequence[str] = (),
        learned: Mapping[ContextItem, LearnedRank] | None = None,
        settings: SelectionSettings | None = None,
    ) -> ItemSelection:
        """Selects items. `recent` are the turns before the message, the latest first: a short message may only continue
        them. `learned` has factors on scores.
        """
        scores, method = await self.score(message, items, recent=recent)
        for item, rank in (learned or {}).items():
            scores[item] = round(min(1.0, scores[item] * rank.factor), SCORE_DECIMALS)
        return ItemSelection(select_items(scores, settings or SelectionSettings()), method)

    async def score(
        self, message: str, items: Sequence[ItemCandidate], *, recent: Sequence[str] = ()
    ) -> tuple[dict[ContextItem, float], Literal["keyword", "embedding"]]:
        keyword_scores = score_keywords(message, [each.searchable for each in items], recent=recent)
        similarities = await self._similarities(message, items, recent)
        if similarities is None:
            fused = keyword_scores
        else:
            # The vector of a message of stop words alone has no meaning.
            has_meaning = any(_extract_query_keywords(turn) for turn in (message, *recent[:1]))
            outlier_scores = score_outlier(similarities) if has_meaning else [0.0] * len(items)
            fused = [
                max(KEYWORD_WEIGHT * keyword + EMBEDDING_WEIGHT * similarity, alone)
                for keyword, similarity, alone in zip(keyword_scores, similarities, outlier_scores, strict=True)
            ]
        rounded = {each.item: round(score, SCORE_DECIMALS) for each, score in zip(items, fused, strict=True)}
        return rounded, "keyword" if similarities is None else "embedding"

    async def _similarities(
        self, message: str, items: Sequence[ItemCandidate], recent: Sequence[str]
    ) -> list[float] | None:
        """Cosine similarities from 0 to 1, or None without an embedder, or when its endpoint fails."""
        if self.embedder is None or not items:
            return None
        import numpy as np

        name, texts = self.embedder.name, [each.embedding_text for each in items]
        keys = [sha256(f"{name}\n{text}".encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
        vectors = {key: self._vectors[key] for key in keys if key in self._vectors}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
        try:
            if missing:
                embedded = dict(zip(missing, await embed_texts(self.embedder, list(missing.values())), strict=True))
                self._vectors.update(embedded)
                vectors |= embedded
            turns = await embed_texts(self.embedder, [turn[:MAX_MESSAGE_CHARS] for turn in (message, *recent)])
        except ModelError:
            return None
        rows = np.stack([vectors[key] for key in keys])
        weights = np.array([1.0, *(RECENT_TURN_WEIGHT / 2**age for age in range(len(recent)))])
        query = weights @ turns.astype(np.float64)
        length = float(np.linalg.norm(query))
        similarities = rows.astype(np.float64) @ query / (length or 1.0)
        return [float(each) for each in np.clip(similarities, 0.0, 1.0)]
