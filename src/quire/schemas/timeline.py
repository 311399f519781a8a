"""Schema of a conversation's timeline. It has columns, not rows: a thousand requests then take 300 kB and not 600."""

from itertools import groupby

from pydantic import Field

from quire.ledger.timeline import FATES, Timeline, TimelineEvent
from quire.log.exchanges import ExchangeRecord
from quire.model.policy import SLOTS
from quire.schemas import JsonModel
from quire.usage.report import SubAgentCost

_COST_DIGITS = 9


class TimelineLimitsSchema(JsonModel):
    """Model, window and trigger, which hold from the request of `reply` on."""

    reply: int
    model: str | None
    window: int | None = Field(description="Null for an imported request, of which only the usage is known.")
    trigger_tokens: int | None


class TimelineSchema(JsonModel):
    """Requests of a branch, oldest first. The n-th value of each column belongs to the n-th request."""

    conversation: str
    branch: int
    limits: list[TimelineLimitsSchema] = Field(description="One for each change.")
    replies: list[int] = Field(description="Sequence number of the reply, which identifies the request.")
    created_at: list[int]
    turns: list[int]
    steps: list[int] = Field(description="Number of the model call within its turn.")
    total_tokens: list[int] = Field(description="Tokens sent; by the provider's count for an imported request.")
    full_history_tokens: list[int | None] = Field(description="Tokens with the full history.")
    slots: dict[str, list[int]] = Field(
        description="Tokens by slot, for slots that were used; 0 in all of them for an imported request."
    )
    fates: list[str] = Field(
        description="What became of entries 1, 2, 3 and so on: a letter, and the number of entries if more than one. "
        "Those after the last are no part of the request. The letters: "
        + "; ".join(f"`{letter}` {name}" for letter, name in FATES.items())
        + "."
    )
    estimated: list[int] = Field(description="Replies of the requests whose tokens are estimates.")
    input_tokens: list[int | None] = Field(description="By the provider's count; null if it reported none.")
    output_tokens: list[int | None]
    cache_read_tokens: list[int | None]
    cache_write_tokens: list[int | None]
    cost_usd: list[float | None] = Field(description="A lower bound for replies in `unpriced`; null if unknown.")
    unpriced: list[int] = Field(description="Replies of the requests of which a price or the usage is not known.")
    sub_agent_usd: list[float | None] = Field(
        description="At the last request of a turn that called sub-agents, what these cost; else null."
    )
    sub_agents: SubAgentCost = Field(description="Sub-agents of the whole conversation.")
    events: list[TimelineEvent] = Field(description="Compactions and edits after `since`, oldest first.")
    unanswered: list[ExchangeRecord] = Field(
        description="Requests without a whole reply, such as refused ones, each with the entry that it came after."
    )
    next_since: int | None = Field(description="Pass it as `since` to get the next page; null on the last page.")

    @classmethod
    def from_timeline(cls, timeline: Timeline, *, conversation: str, branch: int) -> "TimelineSchema":
        rows = timeline.rows
        by_slot = {slot: [row.slots[index] if row.slots else 0 for row in rows] for index, slot in enumerate(SLOTS)}
        return cls(
            conversation=conversation,
            branch=branch,
            limits=[
                TimelineLimitsSchema(reply=next(run).reply, model=key[0], window=key[1], trigger_tokens=key[2])
                for key, run in groupby(rows, key=lambda row: (row.model, row.window, row.trigger_tokens))
            ],
            replies=[row.reply for row in rows],
            created_at=[row.created_at for row in rows],
            turns=[row.turn for row in rows],
            steps=[row.step for row in rows],
            total_tokens=[row.total_tokens for row in rows],
            full_history_tokens=[row.full_history_tokens for row in rows],
            slots={slot: used for slot, used in by_slot.items() if any(used)},
            fates=[row.fates for row in rows],
            estimated=[row.reply for row in rows if not row.is_exact],
            input_tokens=[row.input_tokens for row in rows],
            output_tokens=[row.output_tokens for row in rows],
            cache_read_tokens=[row.cache_read_tokens for row in rows],
            cache_write_tokens=[row.cache_write_tokens for row in rows],
            cost_usd=[None if row.cost_usd is None else round(row.cost_usd, _COST_DIGITS) for row in rows],
            unpriced=[row.reply for row in rows if not row.is_cost_complete],
            sub_agent_usd=[
                None if row.sub_agent_usd is None else round(row.sub_agent_usd, _COST_DIGITS) for row in rows
            ],
            sub_agents=timeline.sub_agents,
            events=timeline.events,
            unanswered=list(timeline.unanswered),
            next_since=timeline.next_since,
        )
