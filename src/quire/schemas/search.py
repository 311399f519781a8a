"""Schema of a message that a search found."""

from pydantic import Field

from quire.model import Topic
from quire.schemas import JsonModel
from quire.schemas.entries import EntrySchema
from quire.schemas.records import ConversationSchema


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
