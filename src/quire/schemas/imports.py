"""Schemas of imports: the sources, and the progress of an uploaded file."""

from typing import Any, Literal

from pydantic import Field

from quire.engine.file_import import ImportReport
from quire.schemas import JsonModel

MAX_SENT_ERRORS = 200
"""Errors in one response; the rest are counted."""

ImportStatus = Literal["running", "done", "failed"]


class ImportSourceSchema(JsonModel):
    name: str = Field(description="Name for `source`, such as `chatgpt`.")
    title: str = Field(description="Name for people.")


class ImportSourceListSchema(JsonModel):
    items: list[ImportSourceSchema]


class ImportErrorSchema(JsonModel):
    item: str = Field(description="File and line, or id.")
    reason: str


class ImportCountsSchema(JsonModel):
    conversations: int = Field(description="Conversations with new messages so far.")
    messages: int = Field(description="New messages so far.")
    known_messages: int = Field(description="Messages that an earlier import brought, or the gateway recorded.")
    live_conversations: int = Field(description="Conversations that were merged with what the gateway recorded.")
    unfinished_replies: int = Field(description="Replies that are still being written; a later import brings them.")
    error_count: int = Field(description="Items that could not be read.")
    errors: list[ImportErrorSchema] = Field(description="The first of them.")


class ImportReportSchema(ImportCountsSchema):
    files: int
    dry_run: bool

    @classmethod
    def from_report(cls, report: ImportReport, *, dry_run: bool) -> "ImportReportSchema":
        return cls(**_count(report, len(report.errors)), files=report.files, dry_run=dry_run)


class ImportJobSchema(ImportCountsSchema):
    id: str
    source: str
    status: ImportStatus = Field(description="`failed` if the file could not be imported to its end.")
    failure: str | None = Field(description="Why it failed; what was imported until then stays.")
    created_at: int

    @classmethod
    def from_report(
        cls, report: ImportReport, *, id: str, source: str, status: ImportStatus, failure: str | None, created_at: int
    ) -> "ImportJobSchema":
        return cls(
            **_count(report, MAX_SENT_ERRORS),
            id=id,
            source=source,
            status=status,
            failure=failure,
            created_at=created_at,
        )


def _count(report: ImportReport, max_errors: int) -> dict[str, Any]:
    return {
        "conversations": report.conversations,
        "messages": report.messages,
        "known_messages": report.known_messages,
        "live_conversations": report.live_conversations,
        "unfinished_replies": report.unfinished_replies,
        "error_count": report.error_count,
        "errors": [ImportErrorSchema(**each._asdict()) for each in report.errors[:max_errors]],
    }


class ImportJobListSchema(JsonModel):
    items: list[ImportJobSchema] = Field(description="The newest first.")
