"""What the entries of a conversation add to the usage roll-up: pure functions of entries and manifests.

Every call has a cost: the one that was charged for it or that its source states, else the one by the public price list
of its day. A call without a known price is counted as such, so that a total can say what it lacks.

A purged entry adds nothing, and neither does the manifest of a purged reply. All counts are integers (costs in
nano-dollars), so that subtracting a contribution restores the totals exactly.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from itertools import combinations
from math import isfinite
from typing import Literal, NamedTuple, cast

from quire.db.dialects import sanitize_text
from quire.model import Compaction, Entry, Manifest, Message, ToolCallPart, TopicIndex
from quire.model.entry_bodies import IMPORTED_STRATEGY
from quire.model.entry_metadata import EntryMetadata
from quire.model.json_values import get_object, get_text
from quire.model.messages import PURGED_TEXT
from quire.view.call_prices import UNKNOWN_COST, Cost
from quire.view.model_specs import UNKNOWN_MODEL, is_local_model, model_spec_for
from quire.wire.billed_calls import BilledCall, list_billed_calls

Dimension = Literal["all", "model", "project", "source", "slot", "tool", "document", "rule", "reference"]
"""What usage is grouped by. `all` has one row a day, with an empty name."""

DAY_MICROSECONDS = 86_400_000_000
EPOCH = date(1970, 1, 1)
NANOS_PER_DOLLAR = 1_000_000_000
MAX_NAME_CHARS = 250
"""Longer names are cut: an index entry of PostgreSQL has at most 2,704 bytes, and a pair has two names."""
MAX_COST_NANOS = 10_000 * NANOS_PER_DOLLAR
MAX_TOKENS = 10**10
"""Limits of what one reply may add: its provider or the source of an import states any number."""
MAX_PAIRED_DOCUMENTS = 40
"""Documents of a conversation that form pairs, the most used ones."""

_MCP_PREFIX = "mcp__"
"""Start of the names that agents give to the tools of MCP servers."""
_TOOL_CALL = '"type":"tool_call"'
"""In canonical JSON a quoted string escapes its quotes, so that only a tool call contains this."""


def format_day(day: int) -> str:
    """The date of a day since 1970, as `2026-01-31`."""
    return (EPOCH + timedelta(days=day)).isoformat()


class UsageCounts(NamedTuple):
    """The columns of the roll-up."""

    turns: int = 0
    """Turns. Of an item, those that had it because it was added by hand."""
    requests: int = 0
    """Model calls; of an item, the requests that included it."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_nanos: int = 0
    unpriced_turns: int = 0
    """Turns that end with a call whose cost is not known."""
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
    unpriced_requests: int = 0
    """Model calls whose cost is a lower bound, because a price or the whole usage is not known."""
    unpriced_tokens: int = 0
    """Input and output tokens of those whose price is not known."""
    imported_nanos: int = 0
    """Cost of imported calls, a part of `cost_nanos`: no spend cap applies to it."""

    @property
    def cost_usd(self) -> float:
        return self.cost_nanos / NANOS_PER_DOLLAR

    @property
    def imported_usd(self) -> float:
        return self.imported_nanos / NANOS_PER_DOLLAR

    @property
    def cache_share(self) -> float:
        """Share of the input tokens that the prompt cache served, from 0 to 1."""
        return min(1.0, self.cache_read_tokens / self.input_tokens) if self.input_tokens else 0.0


class UsageKey(NamedTuple):
    dimension: Dimension
    day: int
    """Days since 1970, UTC."""
    name: str


class TurnUsage(NamedTuple):
    """Cost and tokens of a turn: of all calls from a question to the next one, under the number of the last reply."""

    conversation: str
    branch: int
    seq: int
    day: int
    model: str
    cost_nanos: int
    """A lower bound if calls have no known price."""
    tokens: int
    unpriced_requests: int = 0

    @property
    def cost_usd(self) -> float | None:
        """None if nothing is known."""
        return None if self.unpriced_requests and not self.cost_nanos else self.cost_nanos / NANOS_PER_DOLLAR


class TurnPart(NamedTuple):
    """What calls add to the turn after a question. Without a reply among them, the number is a compaction's."""

    usage: TurnUsage
    has_reply: bool

    def merge(self, later: "TurnPart") -> "TurnPart":
        """Adds up two parts of one turn. Its number, day and model come from the last reply."""
        last = later if later.has_reply else self
        usage = last.usage._replace(
            cost_nanos=self.usage.cost_nanos + later.usage.cost_nanos,
            tokens=self.usage.tokens + later.usage.tokens,
            unpriced_requests=self.usage.unpriced_requests + later.usage.unpriced_requests,
        )
        return TurnPart(usage, self.has_reply or later.has_reply)


class Contribution:
    """Accumulator of what entries of one conversation add to the roll-up."""

    def __init__(self, *, project: str | None, source: str | None) -> None:
        self._project, self._source = _normalize_name(project or ""), _normalize_name(source or "")
        self._counts: defaultdict[UsageKey, Counter[str]] = defaultdict(Counter)
        self.turn_parts: dict[tuple[int, int], TurnPart] = {}
        """By branch and number of the question."""

    @property
    def turns(self) -> list[TurnUsage]:
        """The turns with a cost or tokens."""
        return [part.usage for part in self.turn_parts.values() if part.usage.cost_nanos or part.usage.tokens]

    @property
    def counts(self) -> dict[UsageKey, UsageCounts]:
        """The counts other than zero, by key."""
        sums: defaultdict[UsageKey, Counter[str]] = defaultdict(Counter)
        for key, counter in self._counts.items():
            # Every call has a model, so that the other sums are added up over the models.
            if key.dimension == "model":
                sums[UsageKey("all", key.day, "")].update(counter)
                sums[UsageKey("project", key.day, self._project)].update(counter)
                sums[UsageKey("source", key.day, self._source)].update(counter)
        return {
            key: UsageCounts(**cast("dict[str, int]", counter))
            for key, counter in (*self._counts.items(), *sums.items())
            if any(counter.values())
        }

    def add(self, entry: Entry, manifest: Manifest | None, *, question: int, is_copy: bool = False) -> None:
        """Adds an entry, which follows the user's message `question`, and the manifest of the request that it
        answered. The request of a copy is counted in another entry."""
        if entry.purged_at is not None:
            return
        day = entry.created_at // DAY_MICROSECONDS
        # Without the digest, content that was changed is counted as it is: verification reports it.
        entry = entry._replace(content_digest=None)
        if entry.kind == "compaction":
            compaction = cast(Compaction, entry.body)
            counts = Counter(compactions=1, compacted_tokens=_clamp(compaction.freed_tokens))
            if compaction.usage is not None and not is_copy:
                calls = list_billed_calls(compaction.usage)
                cost = read_cost(compaction, calls, (compaction.usage.model, compaction.model), entry.created_at)
                counts += self._count_call(entry, day, compaction.model or "", calls, cost, question)
                if compaction.strategy == IMPORTED_STRATEGY:
                    counts["imported_nanos"] = counts["cost_nanos"]
            self._add_usage(day, compaction.model or "", counts)
        elif entry.kind == "topic_index":
            index = cast(TopicIndex, entry.body)
            if index.usage is not None:
                calls = list_billed_calls(index.usage)
                cost = read_cost(index, calls, (index.usage.model, index.model), entry.created_at)
                self._add_usage(
                    day, index.model or "", self._count_call(entry, day, index.model or "", calls, cost, question)
                )
        if entry.kind != "message":
            return
        metadata = entry.metadata
        for name in {each.path or each.link for each in metadata.references or ()}:
            self._add_item("document", day, name, uses=1)
        if entry.role == "assistant":
            self._add_reply(day, entry, metadata, manifest, question, is_copy=is_copy)

    def _add_reply(
        self,
        day: int,
        entry: Entry,
        metadata: EntryMetadata,
        manifest: Manifest | None,
        question: int,
        *,
        is_copy: bool,
    ) -> None:
        usage = metadata.usage
        reported = usage.model if usage is not None else None
        model = manifest.policy.model if manifest is not None else reported or ""
        ends_turn = _TOOL_CALL not in entry.raw
        calls = list_billed_calls(usage) if usage is not None else []
        answer = [call for call in calls if call.model is None]
        cost = read_cost(metadata, answer, (reported, model), entry.created_at)
        is_imported = manifest is None and metadata.turn is None
        for call in calls:
            if call.model is not None and not is_copy:
                # An adviser's request. Its cost is part of one that was charged or stated.
                is_stated = metadata.cost_usd is not None
                price = Cost() if is_stated else read_cost(metadata, [call], (call.model,), entry.created_at)
                counts = self._count_call(entry, day, call.model, [call], price, question)
                if is_imported:
                    counts["imported_nanos"] = counts["cost_nanos"]
                self._add_usage(day, call.model, counts)
        # A free call without usage is a copy: an imported fork repeats the history of another session.
        is_copy = is_copy or (usage is None and metadata.cost_usd == 0 and cost.is_complete)
        counts = Counter[str]() if is_copy else self._count_call(entry, day, model, answer, cost, question)
        if usage is not None and usage.partial and cost.usd:
            # Its price is known.
            counts["unpriced_tokens"] = 0
        is_unpriced = ends_turn and not is_copy and not cost.is_complete
        counts += Counter(turns=int(ends_turn), unpriced_turns=int(is_unpriced))
        if manifest is not None:
            counts += self._add_manifest(day, manifest, ends_turn=ends_turn)
        elif is_imported:
            counts["imported_nanos"] = counts["cost_nanos"]
        self._add_usage(day, model, counts)
        if not ends_turn:
            for part in cast(Message, entry.body).parts:
                if isinstance(part, ToolCallPart):
                    self._add_item("tool", day, part.name, uses=1)

    def _count_call(
        self, entry: Entry, day: int, model: str, calls: Sequence[BilledCall], cost: Cost, question: int
    ) -> Counter[str]:
        """Counts of one model call, as its provider bills it, which is added to its turn."""
        counts = Counter(
            requests=1,
            input_tokens=_clamp(sum(call.input_tokens for call in calls)),
            output_tokens=_clamp(sum(call.output_tokens for call in calls)),
            cache_read_tokens=_clamp(sum(call.cache_read_tokens for call in calls)),
            cache_write_tokens=_clamp(sum(call.cache_write_tokens for call in calls)),
            cost_nanos=_to_nanos(cost.usd),
        )
        tokens = counts["input_tokens"] + counts["output_tokens"]
        if not cost.is_complete:
            counts.update(unpriced_requests=1, unpriced_tokens=tokens)
        turn = TurnUsage(
            entry.conversation,
            entry.branch,
            entry.seq,
            day,
            _normalize_name(model),
            counts["cost_nanos"],
            tokens,
            counts["unpriced_requests"],
        )
        part, key = TurnPart(turn, entry.kind == "message"), (entry.branch, question)
        self.turn_parts[key] = self.turn_parts[key].merge(part) if key in self.turn_parts else part
        return counts

    def _add_manifest(self, day: int, manifest: Manifest, *, ends_turn: bool) -> Counter[str]:
        """Adds slots and items of a request. Returns what was recalled for it."""
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
            # An agent's own tools are in each of its requests. Those of its MCP servers can be removed.
            is_own = dimension == "tool" and manifest.forwarded is not None and not name.startswith(_MCP_PREFIX)
            counts = {"candidates": int(not is_own), "requests": int(tokens is not None), "tokens": tokens or 0}
            self._add_item(dimension, day, name, **counts)
        return recalled

    def _add_usage(self, day: int, model: str, counts: Counter[str]) -> None:
        self._counts[UsageKey("model", day, _normalize_name(model))].update(counts)

    def _add_item(self, dimension: Dimension, day: int, name: str, **counts: int) -> None:
        self._counts[UsageKey(dimension, day, _normalize_name(name))].update(counts)


def identify_request(entry: Entry, item: tuple[str, bytes] | None) -> bytes | None:
    """Digest by which copies of a reply are recognized: of the id that the provider gave to the response, else of the
    imported item. None without tokens or a cost: a fork may repeat a reply without them."""
    if entry.purged_at is not None or (entry.kind != "compaction" and entry.role != "assistant"):
        return None
    entry = entry._replace(content_digest=None)
    source = cast(Compaction, entry.body) if entry.kind == "compaction" else entry.metadata
    usage = source.usage
    if not source.cost_usd and (usage is None or not (usage.input_tokens or usage.output_tokens)):
        return None
    id_ = get_text(get_object((usage and usage.provider_fields) or {}, "response"), "id")
    if id_ is not None:
        return sha256(id_.encode(errors="replace")).digest()
    return sha256(item[0].encode() + item[1]).digest() if item is not None else None


def pair_documents(uses: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Pairs of the documents that a conversation uses most, each in alphabetical order."""
    most_used = sorted(uses, key=lambda name: (-uses[name], name))[:MAX_PAIRED_DOCUMENTS]
    return combinations(sorted(most_used), 2)


def read_cost(
    source: EntryMetadata | Compaction | TopicIndex, calls: Sequence[BilledCall], models: Iterable[str | None], at: int
) -> Cost:
    """The cost of a call as it was charged or stated, else by the price list of its day.

    A turn recorded without the costs of its calls has them in the totals of its last reply.
    """
    if source.cost_usd is not None:
        return Cost(source.cost_usd, not source.cost_incomplete)
    usage, cost = source.usage, UNKNOWN_COST
    if usage is None or (usage.estimated and not usage.input_tokens):
        return cost
    names = [name for name in models if name]
    if not any(map(is_local_model, names)):
        specs = (model_spec_for(name) for name in names)
        spec = next((each for each in specs if each.has_price), UNKNOWN_MODEL)
        cost = spec.add_up(calls, at=datetime.fromtimestamp(at / 1_000_000, tz=UTC))
    turn = source.turn if isinstance(source, EntryMetadata) else None
    if not cost.is_complete and not cost.usd and turn is not None and turn.cost_usd > 0 and not turn.cost_incomplete:
        return Cost(turn.cost_usd)
    if not usage.input_tokens and not usage.output_tokens:
        return Cost()
    return Cost(cost.usd, cost.is_complete and not usage.partial)


def _clamp(tokens: int) -> int:
    return min(max(0, tokens), MAX_TOKENS)


def _to_nanos(cost_usd: float | None) -> int:
    if cost_usd is None or not isfinite(cost_usd):
        return 0
    return round(min(max(0.0, cost_usd) * NANOS_PER_DOLLAR, MAX_COST_NANOS))


def _normalize_name(name: str) -> str:
    return sanitize_text(name)[:MAX_NAME_CHARS]
