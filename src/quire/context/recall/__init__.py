"""Recall: which archived messages bear on a question, and what each is worth for its price.

`segments` keeps what is needed of the messages, `archive` joins it, `question` reads the new message, `signals` says in
what respects a message answers it, `ranking` weighs them. Pure: bytes, numbers and texts in, numbers out.
"""

from quire.context.recall.archive import Archive, join
from quire.context.recall.question import Question, read_question
from quire.context.recall.ranking import WEIGHTS, Ranked, rank
from quire.context.recall.segments import Segment, Spoken, build, read

__all__ = [
    "WEIGHTS",
    "Archive",
    "Question",
    "Ranked",
    "Segment",
    "Spoken",
    "build",
    "join",
    "rank",
    "read",
    "read_question",
]
