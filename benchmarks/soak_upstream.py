"""The upstream of `soak.py` as a process: prints its URL, ends with its standard input.

A question names the behaviour of its reply, so that the client knows which turns have to fail.
"""

import re
import sys
import time
from enum import StrEnum

from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedError,
    ScriptedReply,
    run_scripted_provider,
)


class Behaviour(StrEnum):
    """What the upstream does with a question, and which of its turns fail by script."""

    REPLY = "reply"
    CALL = "call"
    """A tool call, then a reply to its result."""
    REFUSE = "refuse"
    """An error response."""
    CUT = "cut"
    """The connection is reset in the middle of the reply."""
    FLOOD = "flood"
    """A long reply; the client hangs up in the middle of it."""
    DELAY = "delay"
    """No reply before the client has hung up."""


MARKER = "upstream-behaviour"
MARKER_PATTERN = re.compile(rf"{MARKER}=(\w+)".encode())
SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
DELAY_SECONDS = 2.0
FLOOD_SENTENCES = 150
TOOL_NAME = "read"
REFUSALS = (
    ScriptedError(500, "api_error", "The model is not available."),
    ScriptedError(429, "rate_limit_error", "Too many requests."),
    ScriptedError(529, "overloaded_error", "Overloaded."),
)


class CountedRequests(list[ProviderRequest]):
    """Counts requests without storing them, for a provider that runs for hours."""

    count = 0

    def append(self, request: ProviderRequest) -> None:
        self.count += 1

    def __len__(self) -> int:
        return self.count


class UnstoredReplies(dict[ProviderRequest, ScriptedReply]):
    def __setitem__(self, request: ProviderRequest, reply: ScriptedReply) -> None:
        pass


def choose_reply(request: ProviderRequest) -> ScriptedReply:
    found = MARKER_PATTERN.findall(request.raw)
    match Behaviour(found[-1].decode()) if found else Behaviour.REPLY:
        case Behaviour.CALL if TOOL_NAME in request.tool_names and not request.newest_results:
            return ScriptedReply("I read the book.", calls=(ScriptedCall(TOOL_NAME, {"path": "mill/book.md"}),))
        case Behaviour.REFUSE:
            return ScriptedReply(error=REFUSALS[len(request.raw) % len(REFUSALS)])
        case Behaviour.CUT:
            return ScriptedReply(SENTENCE * 3, cut_after_events=12)
        case Behaviour.FLOOD:
            return ScriptedReply(SENTENCE * FLOOD_SENTENCES)
        case Behaviour.DELAY:
            time.sleep(DELAY_SECONDS)
            return ScriptedReply(SENTENCE)
        case _:
            return ScriptedReply(SENTENCE * 4)


def main() -> None:
    with run_scripted_provider(choose_reply) as provider:
        provider.received, provider.replies = CountedRequests(), UnstoredReplies()
        sys.stdout.write(f"{provider.openai_url}\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
