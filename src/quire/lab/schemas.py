"""Schemas of a backtest: its variants with their estimates and series, and its progress as a job."""

from pydantic import Field

from quire.backtest import BacktestReport, VariantReport
from quire.backtest.report import Estimate, RatioEstimator, TokenSeries
from quire.schemas import JsonModel


class EstimateSchema(JsonModel):
    value: float
    plus_minus: float | None = Field(
        description="Half of the 95 % confidence interval; null if the conversations are no sample."
    )

    @classmethod
    def from_estimate(cls, estimate: Estimate | None) -> "EstimateSchema | None":
        return None if estimate is None else cls(value=estimate.value, plus_minus=estimate.half_width)


class SeriesPointSchema(JsonModel):
    position: int = Field(description="Number of the turn or request, from 1; of several, the first.")
    tokens: float = Field(description="Mean tokens sent.")
    cached_tokens: float = Field(description="Mean tokens that the request before had at its beginning too.")
    conversations: int = Field(description="Conversations that reach this position.")


class VariantSchema(JsonModel):
    """Means are per conversation."""

    name: str
    strategy: str
    model: str
    window: int
    turns: EstimateSchema | None
    requests: EstimateSchema | None
    tokens: EstimateSchema | None = Field(description="Tokens sent.")
    cached_share: EstimateSchema | None = Field(description="Share of them that a prompt cache can serve.")
    output_tokens: EstimateSchema | None
    compactions: EstimateSchema | None
    cost_usd: EstimateSchema | None = Field(description="Null if the model has no price.")
    regret: EstimateSchema | None = Field(
        description="Share of the needed messages that the request did not have in view; null if none was needed."
    )
    needed: int = Field(description="Messages that replies cited, quoted or read, in all conversations.")
    recorded_requests: int = Field(description="Requests of which the log has a manifest.")
    matching_requests: int = Field(description="Recorded requests that the simulation repeats byte for byte.")
    failed_requests: int
    first_error: str | None
    by_turn: list[SeriesPointSchema]
    by_request: list[SeriesPointSchema]

    @classmethod
    def from_report(cls, report: VariantReport, *, is_sample: bool) -> "VariantSchema":
        def estimate(estimator: RatioEstimator) -> EstimateSchema | None:
            return EstimateSchema.from_estimate(estimator.estimate(is_sample=is_sample))

        return cls(
            name=report.variant.name,
            strategy=report.variant.strategy,
            model=report.model,
            window=report.window,
            turns=estimate(report.turns),
            requests=estimate(report.requests),
            tokens=estimate(report.tokens),
            cached_share=estimate(report.cached_share),
            output_tokens=estimate(report.output_tokens),
            compactions=estimate(report.compactions),
            cost_usd=estimate(report.cost_usd) if report.has_price else None,
            regret=estimate(report.regret),
            needed=report.needed,
            recorded_requests=report.recorded_requests,
            matching_requests=report.matching_requests,
            failed_requests=report.failed_requests,
            first_error=report.first_error,
            by_turn=_list_points(report.by_turn),
            by_request=_list_points(report.by_request),
        )


def _list_points(series: TokenSeries) -> list[SeriesPointSchema]:
    return [SeriesPointSchema(**point._asdict()) for point in series.points()]


class BacktestSchema(JsonModel):
    conversations: int
    skipped: int = Field(description="Conversations without a reply.")
    is_sample: bool
    variants: list[VariantSchema]

    @classmethod
    def from_report(cls, report: BacktestReport) -> "BacktestSchema":
        return cls(
            conversations=report.conversations,
            skipped=report.skipped,
            is_sample=report.is_sample,
            variants=[VariantSchema.from_report(each, is_sample=report.is_sample) for each in report.variants],
        )
