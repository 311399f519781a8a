"""Schemas of the insights: usage counts, groups, turns by cost, suggestions, documents that are used together."""

from typing import TYPE_CHECKING

from pydantic import Field

from quire.schemas import JsonModel
from quire.store import SqlStore
from quire.usage.contribution import format_day
from quire.usage.insights import UsageSuggestion, read_insights
from quire.usage.report import USAGE_GROUPINGS, DocumentPair, SubAgentCost, UsageGrouping

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class UsageGroupSchema(JsonModel):
    name: str = Field(description="Name in its dimension, or a date; empty for what has none.")
    counts: UsageCountsSchema


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
    sub_agents: SubAgentCost | None = Field(description="Sub-agents that the turn called; null without any.")


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
    suggestions: list[UsageSuggestion]
    pending_branches: int = Field(description="Branches with entries that are not counted yet.")


class DocumentGraphSchema(JsonModel):
    """Documents that are used together: the names are the nodes, the pairs the edges."""

    documents: list[str]
    pairs: list[DocumentPair]


async def load_stats(
    store: SqlStore, *, since: int | None, groupings: "Sequence[UsageGrouping]" = USAGE_GROUPINGS, limit: int
) -> StatsSchema:
    """Reads the roll-up, with the titles of the turns that cost most and what their sub-agents cost."""
    insights = await read_insights(store.usage, since=since, groupings=groupings, limit=limit)
    report = insights.report
    ids = sorted({turn.conversation for turn in report.turns})
    records = await store.fill_titles(*[await store.get_conversation(each) for each in ids])
    titles = {each.id: each.title for each in records}
    called = {each.id: (await store.usage.read_sub_agents(each)).turns for each in records}
    return StatsSchema.model_validate(
        {
            **report._asdict(),
            "since": insights.since,
            "suggestions": insights.suggestions,
            "unused": {
                "document_count": report.unused_documents.total,
                "documents": report.unused_documents.paths,
                "rules": [each.name for each in report.unused_rules],
                "tools": [each.name for each in report.unused_tools],
            },
            "turns": [
                {
                    **turn._asdict(),
                    "title": titles.get(turn.conversation, ""),
                    "day": format_day(turn.day),
                    "cost_usd": turn.cost_usd,
                    "sub_agents": called[turn.conversation].get((turn.branch, turn.seq)),
                }
                for turn in report.turns
            ],
        }
    )
