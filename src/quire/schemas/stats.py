"""Schemas of the insights: usage counts, groups, turns by cost, suggestions, documents that are used together."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from quire.log import ConversationRecord
from quire.schemas import JsonModel

if TYPE_CHECKING:
    from quire.usage.contribution import TurnUsage, UsageCounts
    from quire.usage.insights import Insights, UsageSuggestion
    from quire.usage.report import DocumentPair, SubAgentCost, SubAgentCosts, UsageGroup

NANOS_PER_DOLLAR = 1_000_000_000


class UsageCountsSchema(JsonModel):
    turns: int = Field(description="Questions that were answered.")
    requests: int = Field(description="Model calls; of an item, the requests that included it.")
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_share: float = Field(description="Share of the input tokens that the prompt cache served, from 0 to 1.")
    cost_usd: float = Field(
        description="Cost of all model calls, summaries included; a lower bound if `unpriced_requests` is not 0."
    )
    imported_usd: float = Field(description="The part of `cost_usd` that imported calls cost; no spend cap has it.")
    unpriced_turns: int = Field(description="Turns that end with a call whose cost is not known.")
    unpriced_requests: int = Field(description="Model calls of which a price or the whole usage is not known.")
    unpriced_tokens: int = Field(description="Input and output tokens of those whose price is not known.")
    compactions: int
    compacted_tokens: int = Field(description="Tokens by which compactions reduced the view.")
    recalled_messages: int = Field(description="Archived messages that requests included.")
    recalled_tokens: int
    candidates: int = Field(description="Requests that had the item as a candidate, included or not.")
    uses: int = Field(description="Calls of a tool; messages that reference a document.")
    tokens: int = Field(description="Tokens that the slot or item took in requests.")

    @classmethod
    def from_counts(cls, counts: "UsageCounts") -> "UsageCountsSchema":
        values = counts._asdict()
        cost, imported = (values.pop(name) / NANOS_PER_DOLLAR for name in ("cost_nanos", "imported_nanos"))
        share = counts.cache_read_tokens / counts.input_tokens if counts.input_tokens else 0.0
        return cls(**values, cost_usd=cost, imported_usd=imported, cache_share=min(1.0, share))


class UsageGroupSchema(JsonModel):
    name: str = Field(description="Name in its dimension, or a date; empty for what has none.")
    counts: UsageCountsSchema

    @classmethod
    def from_group(cls, group: "UsageGroup") -> "UsageGroupSchema":
        from quire.usage.insights import format_day

        name = group.name if group.day is None else format_day(group.day)
        return cls(name=name, counts=UsageCountsSchema.from_counts(group.counts))


class SubAgentCostSchema(JsonModel):
    """What sub-agents cost that a conversation or a turn of it started. It is not in the cost of these."""

    sub_agents: int = Field(description="Number of the sub-agents.")
    cost_usd: float = Field(description="Cost of all their calls; a lower bound if `unpriced_requests` is not 0.")
    unpriced_requests: int = Field(description="Their model calls whose cost is not known.")

    @classmethod
    def from_cost(cls, cost: "SubAgentCost") -> "SubAgentCostSchema":
        dollars = cost.cost_nanos / NANOS_PER_DOLLAR
        return cls(sub_agents=cost.sub_agents, cost_usd=dollars, unpriced_requests=cost.unpriced_requests)


class TurnCostSchema(JsonModel):
    """A turn by its last reply: `quire context show CONVERSATION --reply NUMBER` prints its manifest."""

    conversation: str
    title: str
    branch: int
    seq: int = Field(description="Number of the reply.")
    day: str
    model: str
    cost_usd: float | None = Field(
        description="Cost of all its calls; a lower bound if `unpriced_requests` is not 0, null if nothing is known."
    )
    tokens: int = Field(description="Input and output tokens of all steps.")
    unpriced_requests: int = Field(description="Its model calls whose cost is not known.")
    sub_agents: SubAgentCostSchema | None = Field(description="Sub-agents that the turn called; null without any.")

    @classmethod
    def from_turn(
        cls, turn: "TurnUsage", titles: Mapping[str, str], sub_agents: "Mapping[str, SubAgentCosts]"
    ) -> "TurnCostSchema":
        from quire.usage.insights import format_day

        called = sub_agents[turn.conversation].turns.get((turn.branch, turn.seq))
        return cls(
            conversation=turn.conversation,
            title=titles.get(turn.conversation, ""),
            branch=turn.branch,
            seq=turn.seq,
            day=format_day(turn.day),
            model=turn.model,
            cost_usd=None if turn.unpriced_requests and not turn.cost_nanos else turn.cost_nanos / NANOS_PER_DOLLAR,
            tokens=turn.tokens,
            unpriced_requests=turn.unpriced_requests,
            sub_agents=SubAgentCostSchema.from_cost(called) if called is not None else None,
        )


class SuggestionSchema(JsonModel):
    action: Literal["pin", "always", "remove"]
    kind: Literal["document", "rule", "reference", "tool"]
    name: str
    share: float = Field(description="Share of the turns that reference it, or of the requests that include it.")
    tokens: int

    @classmethod
    def from_suggestion(cls, suggestion: "UsageSuggestion") -> "SuggestionSchema":
        return cls(**suggestion._asdict())


class UnusedSchema(JsonModel):
    document_count: int = Field(description="Documents of the vault that no message references.")
    documents: list[str] = Field(description="The first of them, in alphabetical order.")
    rules: list[str] = Field(description="Rules that were candidates and never included.")
    tools: list[str] = Field(description="Tools that requests offered and the model never called.")


class StatsSchema(JsonModel):
    since: str = Field(description="First day, in UTC.")
    first_day: str | None = Field(description="First day with usage of all, also before `since`.")
    totals: UsageCountsSchema
    groups: dict[str, list[UsageGroupSchema]] = Field(
        description="Counts by `day`, `model`, `project`, `source`, `slot` and `tool`."
    )
    documents: list[UsageGroupSchema]
    rules: list[UsageGroupSchema]
    references: list[UsageGroupSchema]
    unused: UnusedSchema
    turns: list[TurnCostSchema] = Field(description="The turns that cost most.")
    suggestions: list[SuggestionSchema]
    pending_branches: int = Field(description="Branches with entries that are not counted yet.")

    @classmethod
    def from_insights(
        cls,
        insights: "Insights",
        records: Iterable[ConversationRecord],
        sub_agents: "Mapping[str, SubAgentCosts]",
    ) -> "StatsSchema":
        """`records` are the conversations of the turns, with titles; `sub_agents` has the costs of each."""
        from quire.usage.insights import format_day

        report, titles = insights.report, {each.id: each.title for each in records}
        return cls(
            since=format_day(insights.since_day),
            first_day=format_day(report.first_day) if report.first_day is not None else None,
            totals=UsageCountsSchema.from_counts(report.totals),
            groups={name: _to_groups(groups) for name, groups in report.groups.items()},
            documents=_to_groups(report.documents),
            rules=_to_groups(report.rules),
            references=_to_groups(report.references),
            unused=UnusedSchema(
                document_count=report.unused_documents.total,
                documents=list(report.unused_documents.paths),
                rules=[each.name for each in report.unused_rules],
                tools=[each.name for each in report.unused_tools],
            ),
            turns=[TurnCostSchema.from_turn(each, titles, sub_agents) for each in report.turns],
            suggestions=[SuggestionSchema.from_suggestion(each) for each in insights.suggestions],
            pending_branches=report.pending_branches,
        )


class RecountSchema(JsonModel):
    """What a recount found; everything that differed from the log was corrected."""

    conversations: int
    corrected_conversations: int
    corrected_totals: int


class RecountedStatsSchema(StatsSchema):
    recount: RecountSchema


class ConversationStatsSchema(JsonModel):
    conversation: str
    branch: int
    created_at: int
    last_entry_at: int | None
    entries: dict[str, int] = Field(description="Number of entries by kind.")
    messages: dict[str, int] = Field(description="Number of messages by role.")
    archived_up_to: int | None = Field(description="Sequence number of the last archived entry.")
    compactions: int
    pins: int
    branches: int
    purged: int
    replies: int = Field(description="Replies whose usage is known.")
    tokens: dict[str, int] = Field(
        description="`stored`, and by the provider's reports `input`, `output`, `cache_read`."
    )
    cost_usd: float = Field(
        description="Cost of all branches, imported calls included; a lower bound if `unpriced_requests` is not 0."
    )
    unpriced_requests: int = Field(description="Model calls whose cost is not known.")
    unpriced_tokens: int = Field(description="Input and output tokens of those whose price is not known.")
    sub_agents: SubAgentCostSchema


def _to_groups(groups: "Iterable[UsageGroup]") -> list[UsageGroupSchema]:
    return [UsageGroupSchema.from_group(each) for each in groups]


class DocumentPairSchema(JsonModel):
    first: str
    second: str
    conversations: int = Field(description="Conversations that use both.")


class DocumentGraphSchema(JsonModel):
    """Documents that are used together: the names are the nodes, the pairs the edges."""

    documents: list[str]
    pairs: list[DocumentPairSchema]

    @classmethod
    def from_pairs(cls, pairs: "Iterable[DocumentPair]") -> "DocumentGraphSchema":
        edges = [DocumentPairSchema(**pair._asdict()) for pair in pairs]
        names = {name for edge in edges for name in (edge.first, edge.second)}
        return cls(documents=sorted(names), pairs=edges)
