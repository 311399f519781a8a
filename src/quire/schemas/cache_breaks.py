"""Schemas of cache breaks."""

from pydantic import Field

from quire.ledger.cache_breaks import CacheBreak, CacheBreakKind
from quire.ledger.cache_history import CacheReport
from quire.schemas import JsonModel
from quire.schemas.context import BranchDocument


class CacheBreakSchema(JsonModel):
    """A request of which the provider's prompt cache served less than it could have."""

    reply: int = Field(description="Sequence number of the reply, which identifies the request.")
    previous: int = Field(description="Reply of the request before, which may be on another branch.")
    previous_conversation: str | None = Field(
        description="Conversation of that reply, if it is another one of the client's session."
    )
    kind: CacheBreakKind = Field(description="What changed.")
    detail: str
    place: str | None = Field(description="First difference in the body, such as `messages[3]`; null if not known.")
    before: str | None = Field(description="Excerpt of the earlier request at that place.")
    after: str | None
    seconds: int = Field(description="Time between the two replies.")
    tokens: int | None = Field(description="Tokens that were cached and had to be processed again.")
    is_estimated: bool = Field(description="The provider reported no usage: `tokens` is an estimate.")
    read_tokens: int | None = Field(description="Tokens that the cache served; null if not reported.")
    cost_usd: float | None = Field(
        description="What the tokens cost more than if they had been read from the cache; null if not known."
    )

    @classmethod
    def from_break(cls, found: CacheBreak) -> "CacheBreakSchema":
        cause = found.cause
        return cls(
            reply=found.reply,
            previous=found.previous,
            previous_conversation=found.previous_conversation,
            kind=cause.kind,
            detail=cause.detail,
            place=cause.place,
            before=cause.before,
            after=cause.after,
            seconds=found.seconds,
            tokens=found.tokens,
            is_estimated=found.is_estimated,
            read_tokens=found.read_tokens,
            cost_usd=found.cost_usd,
        )


class CacheReportSchema(JsonModel):
    requests: int = Field(description="Newest requests of the branch that were compared; at most 500.")
    unknown: str | None = Field(description="What is not known about them; null if everything is.")
    breaks: list[CacheBreakSchema] = Field(description="Oldest first.")

    @classmethod
    def from_report(cls, report: CacheReport) -> "CacheReportSchema":
        breaks = [CacheBreakSchema.from_break(each) for each in report.breaks]
        return cls(requests=report.requests, unknown=report.unknown, breaks=breaks)


class BranchCacheSchema(BranchDocument, CacheReportSchema):
    pass
