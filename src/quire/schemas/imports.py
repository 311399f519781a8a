"""Schemas of imports: the sources, and the progress of an uploaded file."""

from typing import Literal

from pydantic import Field

from quire.engine.import_writer import ImportReport
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


class ImportJobSchema(JsonModel):
    id: str
    source: str
    status: ImportStatus = Field(description="`failed` if the file could not be imported to its end.")
    failure: str | None = Field(description="Why it failed; what was imported until then stays.")
    created_at: int
    conversations: int = Field(description="Conversations with new messages so far.")
    messages: int = Field(description="New messages so far.")
    known_messages: int = Field(description="Messages that an earlier import brought.")
    live_conversations: int = Field(description="Conversations that the gateway recorded, which are skipped.")
    error_count: int = Field(description="Items that could not be read.")
    errors: list[ImportErrorSchema] = Field(description="The first of them.")

    @classmethod
    def from_report(
        cls, report: ImportReport, *, id: str, source: str, status: ImportStatus, failure: str | None, created_at: int
    ) -> "ImportJobSchema":
        return cls(
            id=id,
            source=source,
            status=status,
            failure=failure,
            created_at=created_at,
            conversations=report.conversations,
            messages=report.messages,
            known_messages=report.known_messages,
            live_conversations=report.live_conversations,
            error_count=report.error_count,
            errors=[ImportErrorSchema(item=each.item, reason=each.reason) for each in report.errors[:MAX_SENT_ERRORS]],
        )


class ImportJobListSchema(JsonModel):
    items: list[ImportJobSchema] = Field(description="The newest first.")
