"""What the entries of a conversation add to the usage roll-up: pure functions of entries and manifests.

A purged entry adds nothing, and neither does the manifest of a purged reply. All counts are integers (costs in
nano-dollars), so that subtracting a contribution restores the totals exactly.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations
from math import isfinite
from typing import Literal, NamedTuple, cast

from quire.db.dialects import sanitize_text
from quire.model import Compaction, Entry, Manifest, Message, ToolCallPart
from quire.model.entry_metadata import EntryMetadata, Usage
from quire.model.messages import PURGED_TEXT

Dimension = Literal["all", "model", "project", "source", "slot", "tool", "document", "rule", "reference"]
"""What usage is grouped by. `all` has one row a day, with an empty name."""

DAY_MICROSECONDS = 86_400_000_000
NANOS_PER_DOLLAR = 1_000_000_000
MAX_NAME_CHARS = 250
"""Longer names are cut: an index entry of PostgreSQL has at most 2,704 bytes, and a pair has two names."""
MAX_COST_NANOS = 10_000 * NANOS_PER_DOLLAR
MAX_TOKENS = 10**10
"""Limits of what one reply may add: its provider or the source of an import states any number."""
MAX_PAIRED_DOCUMENTS = 40
"""Documents of a conversation that form pairs, the most used ones."""

_TOOL_CALL = '"type":"tool_call"'
"""In canonical JSON a quoted string escapes its quotes, so that only a tool call contains this."""


class UsageCounts(NamedTuple):
    """The columns of the roll-up."""

    turns: int = 0
    """Turns; of an item, those that had it because it was added by hand."""
    requests: int = 0
    """Model calls; of an item, the requests that included it."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_nanos: int = 0
    unpriced_turns: int = 0
    """Turns whose cost is not known: imported ones, and turns of a model without a price."""
    compactions: int = 0
    compacted_tokens: int = 0
    """Tokens by which compactions reduced the view."""
    recalled_messages: int = 0
    recalled_tokens: int = 0
    candidates: int = 0
    """Requests that had the item as a candidate, included or not."""
    uses: int = 0
    """Calls of a tool; messages that reference a document; replies that used a rule or reference."""
    tokens: int = 0
    """Tokens that the slot or item took in requests."""


class UsageKey(NamedTuple):
    dimension: Dimension
    day: int
    """Days since 1970, UTC."""
    name: str


class TurnUsage(NamedTuple):
    """Cost and tokens of a turn, under the reply that ends it, as its manifest."""

    conversation: str
    branch: int
    seq: int
    day: int
    model: str
    cost_nanos: int
    """0 if it is not known."""
    tokens: int


class Contribution:
    """Accumulator of what entries of one conversation add to the roll-up."""

    def __init__(self, *, project: str | None, source: str | None) -> None:
        self._project, self._source = _normalize_name(project or ""), _normalize_name(source or "")
        self._counts: defaultdict[UsageKey, Counter[str]] = defaultdict(Counter)
        self.turns: list[TurnUsage] = []

    @property
    def counts(self) -> dict[UsageKey, UsageCounts]:
        """The counts other than zero, by key."""
        return {
            key: UsageCounts(**cast("dict[str, int]", counter))
            for key, counter in self._counts.items()
            if any(counter.values())
        }

    def add(self, entry: Entry, manifest: Manifest | None) -> None:
        """Adds an entry and the manifest of the request that it answered."""
        if entry.purged_at is not None:
            return
        day = entry.created_at // DAY_MICROSECONDS
        # Without the digest, content that was changed is counted as it is: verification reports it.
        entry = entry._replace(content_digest=None)
        if entry.kind == "compaction":
            compaction = cast(Compaction, entry.body)
            freed = _clamp(compaction.tokens_before - compaction.tokens_after)
            counts = Counter(compactions=1, compacted_tokens=freed)
            if compaction.usage is not None:
                counts += Counter(requests=1, **_count_usage(compaction.usage))
            self._add_usage(day, compaction.model or "", counts)
        if entry.kind != "message":
            return
        metadata = entry.metadata
        for name in {each.path or each.link for each in metadata.references or ()}:
            self._add_item("document", day, name, uses=1)
        if entry.role == "assistant":
            self._add_reply(day, entry, metadata, manifest)

    def _add_reply(self, day: int, entry: Entry, metadata: EntryMetadata, manifest: Manifest | None) -> None:
        usage, turn = metadata.usage, metadata.turn
        model = manifest.policy.model if manifest is not None else (usage.model if usage is not None else None) or ""
        ends_turn = _TOOL_CALL not in entry.raw
        cost = _to_nanos(turn.cost_usd if turn is not None else metadata.cost_usd)
        counts = Counter(
            requests=1,
            turns=int(ends_turn),
            cost_nanos=cost,
            unpriced_turns=int(ends_turn and not cost),
            **_count_usage(usage),
        )
        if manifest is not None:
            counts += self._add_manifest(day, manifest, ends_turn=ends_turn)
        self._add_usage(day, model, counts)
        if not ends_turn:
            for part in cast(Message, entry.body).parts:
                if isinstance(part, ToolCallPart):
                    self._add_item("tool", day, part.name, uses=1)
        total = turn.usage if turn is not None else usage
        tokens = _clamp(total.input_tokens + total.output_tokens) if total is not None else 0
        if ends_turn and (cost or tokens):
            name = _normalize_name(model)
            self.turns.append(TurnUsage(entry.conversation, entry.branch, entry.seq, day, name, cost, tokens))

    def _add_manifest(self, day: int, manifest: Manifest, *, ends_turn: bool) -> Counter[str]:
        """Adds slots and items of a request; returns what was recalled for it."""
        for slot in manifest.slots:
            if slot.used > 0:
                self._add_item("slot", day, slot.slot, requests=1, tokens=_clamp(slot.used))
        candidates: set[tuple[Dimension, str]] = set()
        included: Counter[tuple[Dimension, str]] = Counter()
        recalled: Counter[str] = Counter()
        for decision in manifest.decisions:
            match decision.kind:
                case "tool" | "rule" | "reference" | "document" if decision.name not in (None, PURGED_TEXT):
                    key = decision.kind, decision.name
                    candidates.add(key)
                    if decision.included:
                        included[key] += _clamp(decision.tokens)
                    if decision.used and decision.kind in ("rule", "reference"):
                        self._add_item(decision.kind, day, decision.name, uses=1)
                    if ends_turn and decision.included and decision.reason == "manual":
                        self._add_item(decision.kind, day, decision.name, turns=1)
                case "message" if decision.included and decision.reason == "recalled" and decision.span is not None:
                    messages = decision.span.last - decision.span.first + 1
                    recalled.update(recalled_messages=_clamp(messages), recalled_tokens=_clamp(decision.tokens))
                case _:
                    pass
        for dimension, name in candidates:
            tokens = included.get((dimension, name))
            self._add_item(dimension, day, name, candidates=1, requests=int(tokens is not None), tokens=tokens or 0)
        return recalled

    def _add_usage(self, day: int, model: str, counts: Counter[str]) -> None:
        self._counts[UsageKey("all", day, "")].update(counts)
        self._counts[UsageKey("model", day, _normalize_name(model))].update(counts)
        self._counts[UsageKey("project", day, self._project)].update(counts)
        self._counts[UsageKey("source", day, self._source)].update(counts)

    def _add_item(self, dimension: Dimension, day: int, name: str, **counts: int) -> None:
        self._counts[UsageKey(dimension, day, _normalize_name(name))].update(counts)


def pair_documents(uses: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Pairs of the documents that a conversation uses most, each in alphabetical order."""
    most_used = sorted(uses, key=lambda name: (-uses[name], name))[:MAX_PAIRED_DOCUMENTS]
    return combinations(sorted(most_used), 2)


def _count_usage(usage: Usage | None) -> dict[str, int]:
    if usage is None:
        return {}
    return {
        "input_tokens": _clamp(usage.input_tokens),
        "output_tokens": _clamp(usage.output_tokens),
        "cache_read_tokens": _clamp(usage.cache_read_tokens),
        "cache_write_tokens": _clamp(usage.cache_write_tokens),
    }


def _clamp(tokens: int) -> int:
    return min(max(0, tokens), MAX_TOKENS)


def _to_nanos(cost_usd: float | None) -> int:
    if cost_usd is None or not isfinite(cost_usd):
        return 0
    return round(min(max(0.0, cost_usd) * NANOS_PER_DOLLAR, MAX_COST_NANOS))


def _normalize_name(name: str) -> str:
    return sanitize_text(name)[:MAX_NAME_CHARS]
