"""Schemas of imports: the sources, and the progress of an uploaded file."""

from typing import Literal

from pydantic import Field

from quire.schemas import JsonModel

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


class ImportJobSchema(ImportCountsSchema):
    id: str
    source: str
    status: ImportStatus = Field(description="`failed` if the file could not be imported to its end.")
    failure: str | None = Field(description="Why it failed; what was imported until then stays.")
    created_at: int


class ImportJobListSchema(JsonModel):
    items: list[ImportJobSchema] = Field(description="The newest first.")
