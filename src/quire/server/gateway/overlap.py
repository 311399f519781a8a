"""Overlap of a client's list with stored messages, for lists that do not start with the conversation."""

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from quire.model import Entry
from quire.server.gateway.codecs.client_messages import ClientMessage
from quire.server.gateway.codecs.normal_form import normalize_message

MAX_OVERLAP_MESSAGES = 200
"""Maximum number of newest messages, of the client and of the log, that are compared to find an overlap."""


class Overlap(NamedTuple):
    """Messages `first` to `last` of the client's list equal the stored messages that end at `stored_last`."""

    first: int
    last: int
    stored_last: int


def find_window_overlap(messages: Sequence[ClientMessage], stored: Sequence[Entry]) -> Overlap | None:
    newest = messages[-MAX_OVERLAP_MESSAGES:]
    dropped = len(messages) - len(newest)
    keys = [normalize_message(entry.message).canonical_json().encode() for entry in stored]
    overlap = find_overlap(
        [each.match_key for each in newest], keys, is_reply=[each.role == "assistant" for each in newest]
    )
    return overlap and Overlap(overlap.first + dropped, overlap.last + dropped, overlap.stored_last)


def find_overlap(sent: Sequence[bytes], stored: Sequence[bytes], *, is_reply: Sequence[bool]) -> Overlap | None:
    """Finds a run from the client's first message to the log's head, else the run that ends last in the client's list.

    A run to the head is preferred because it continues the conversation: repeated identical turns would otherwise match
    an earlier place and fork. `sent` and `stored` are match keys, oldest first; `is_reply` marks assistant messages in
    `sent`. A run counts only if it contains a reply, because users often repeat their own words. The work is the
    product of the two lengths: digests are compared, and each run extends the one that ends a message earlier.
    """
    sent_digests, stored_digests = ([sha256(key).digest() for key in keys] for keys in (sent, stored))
    head, last_reply = len(stored) - 1, -1
    to_head: Overlap | None = None
    latest: Overlap | None = None
    # One row of the table of runs: runs[n + 1] is the length of the run that ends at `last` and at stored message n.
    runs = [0] * (len(stored) + 1)
    for last, digest in enumerate(sent_digests):
        last_reply = last if is_reply[last] else last_reply
        found: Overlap | None = None
        for stored_last in range(head, -1, -1):
            run = runs[stored_last + 1] = runs[stored_last] + 1 if digest == stored_digests[stored_last] else 0
            if found is None and last_reply > last - run:
                found = Overlap(last - run + 1, last, stored_last)
        if found is not None:
            latest = found
            to_head = found if (found.first, found.stored_last) == (0, head) else to_head
    return to_head or latest
