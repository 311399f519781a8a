"""Recall: finds the archived messages that are relevant to a question and ranks each by its utility for its token cost.

`segments` stores an inverted index and feature columns of the messages, `index` merges segments, `query` parses the new
message, `ranker` computes the relevance signals and their weighted sum. Pure: bytes, numbers and texts in, numbers out.
"""

from quire.context.recall.index import RecallIndex, merge_segments
from quire.context.recall.query import RecallQuery, parse_query
from quire.context.recall.ranker import SIGNAL_WEIGHTS, RankedMessage, rank_messages
from quire.context.recall.segments import IndexedMessage, RecallSegment, build_segment, decode_segment

__all__ = [
    "SIGNAL_WEIGHTS",
    "IndexedMessage",
    "RankedMessage",
    "RecallIndex",
    "RecallQuery",
    "RecallSegment",
    "build_segment",
    "decode_segment",
    "merge_segments",
    "parse_query",
    "rank_messages",
]
