"""Schema of findings: what stored sessions cost, and what they wasted."""

from quire.findings.report import Finding
from quire.schemas import JsonModel
from quire.schemas.stats import UsageCountsSchema, UsageGroupSchema


class ScanReportSchema(JsonModel):
    totals: UsageCountsSchema
    conversations: int
    """Conversations with a cost."""
    sub_agent_usd: float
    """Cost of sub-agents, a part of the total."""
    agents: list[UsageGroupSchema]
    projects: list[UsageGroupSchema]
    models: list[UsageGroupSchema]
    days: list[UsageGroupSchema]
    findings: list[Finding]
    """The most expensive first."""
