"""Schemas of the messages that a search found."""

from typing import TYPE_CHECKING

from pydantic import Field

from quire.model import Topic
from quire.schemas import JsonModel
from quire.schemas.entries import EntrySchema, entry_to_schema
from quire.schemas.records import ConversationSchema

if TYPE_CHECKING:
    from quire.engine.search import MessageHit


class MessageHitSchema(JsonModel):
    conversation: ConversationSchema
    score: float = Field(description="Relevance from 0 to 1, for `min_score`.")
    excerpt: str = Field(description="One line of the message, where most of the query's terms are.")
    highlights: list[tuple[int, int]] = Field(
        description="Start and end of the query's terms in the excerpt, in Unicode code points, in order."
    )
    topics: list[Topic] = Field(
        description="Topics in a model's words that cite the message and have terms of the query that it lacks."
    )
    entry: EntrySchema

    @classmethod
    def from_hit(cls, hit: "MessageHit") -> "MessageHitSchema":
        return cls(
            conversation=ConversationSchema.from_record(hit.conversation),
            score=hit.score,
            excerpt=hit.excerpt,
            highlights=list(hit.highlights),
            topics=list(hit.topics),
            entry=entry_to_schema(hit.entry),
        )


class FoundMessagesSchema(JsonModel):
    query: str
    messages: list[MessageHitSchema]
    complete: bool = Field(description="False while some messages are still being indexed; retry later.")
