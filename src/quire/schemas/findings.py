"""Schemas of findings: what stored sessions cost, and what they wasted."""

from typing import TYPE_CHECKING, Any

from pydantic import Field

from quire.schemas import JsonModel
from quire.schemas.stats import UsageCountsSchema, UsageGroupSchema

if TYPE_CHECKING:
    from quire.findings.report import Finding, FindingsReport


class FindingEvidenceSchema(JsonModel):
    text: str
    project: str = Field(description="Folder that the session worked in; empty if it is not of one.")
    conversation: str | None = Field(description="Conversation that has it, if it is in one.")
    tokens: int
    cost_usd: float
    command: str = Field(description="Command that shows it.")


class ScanFindingSchema(JsonModel):
    kind: str
    title: str = Field(description="One sentence with the numbers.")
    advice: str = Field(description="What to do about it.")
    cost_usd: float
    tokens: int
    total: int = Field(description="Number of all evidence, of which `evidence` has the largest.")
    evidence: list[FindingEvidenceSchema]
    command: str = Field(description="Command that shows the largest evidence.")

    @classmethod
    def from_finding(cls, finding: "Finding") -> "ScanFindingSchema":
        values: dict[str, Any] = finding._asdict()
        values["evidence"] = [FindingEvidenceSchema(**each._asdict()) for each in finding.evidence]
        return cls(**values)


class ScanReportSchema(JsonModel):
    totals: UsageCountsSchema
    conversations: int = Field(description="Conversations with a cost.")
    sub_agent_usd: float = Field(description="Cost of sub-agents, a part of the total.")
    agents: list[UsageGroupSchema]
    projects: list[UsageGroupSchema]
    models: list[UsageGroupSchema]
    days: list[UsageGroupSchema]
    findings: list[ScanFindingSchema] = Field(description="The most expensive first.")

    @classmethod
    def from_report(cls, report: "FindingsReport") -> "ScanReportSchema":
        groups = {
            name: [UsageGroupSchema.from_group(each) for each in getattr(report, name)]
            for name in ("agents", "projects", "models", "days")
        }
        return cls(
            totals=UsageCountsSchema.from_counts(report.totals),
            conversations=report.conversations,
            sub_agent_usd=report.sub_agent_usd,
            findings=[ScanFindingSchema.from_finding(each) for each in report.findings],
            **groups,
        )
