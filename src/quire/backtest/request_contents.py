"""What a simulated request contains: how much of it repeats the request before, and which needs it has in view."""

from collections.abc import Mapping

from quire.backtest.needs import Need, is_quoted_in, normalize_text
from quire.engine.request import Request
from quire.model import Message
from quire.view.layout import RenderedRequest


def count_repeated_tokens(previous: RenderedRequest | None, current: RenderedRequest) -> int:
    """Tokens of the stable prefix: instructions, tools and leading messages that both requests have, byte for byte.

    This is what a provider's prompt cache can serve. A message counts whole or not at all.
    """
    if previous is None or (previous.system, previous.tools) != (current.system, current.tools):
        return 0
    tokens = current.tokens - sum(message.tokens for message in current.messages)
    for before, message in zip(previous.messages, current.messages, strict=False):
        if before.encoded != message.encoded:
            break
        tokens += message.tokens
    return tokens


class NeedsInView:
    """Looks up needs in one request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._whole_messages: set[int] | None = None
        self._partial_text: str | None = None

    def contains(self, need: Need, numbers: Mapping[int, int]) -> bool:
        """Whether the request has the needed message whole, or the quoted words anywhere. `numbers` are those of the
        request's log by those of the stored conversation."""
        if any(numbers.get(seq) in self._list_whole_messages() for seq in need.messages):
            return True
        return bool(need.words) and is_quoted_in(self._read_partial_text(), need.words)

    def _list_whole_messages(self) -> set[int]:
        if self._whole_messages is None:
            rows = self._request.manifest.included
            self._whole_messages = {
                seq
                for row in rows
                if row.kind == "message" and row.span is not None and row.reason not in ("cleared", "excerpted")
                if row.excerpt_chars is None and row.excerpt_spans is None and row.turn_excerpt_chars is None
                for seq in range(row.span.first, row.span.last + 1)
            }
        return self._whole_messages

    def _read_partial_text(self) -> str:
        """The text of everything else: the summary, excerpts, recalled passages, stubs, references."""
        if self._partial_text is None:
            whole, messages = self._list_whole_messages(), self._request.assembly.rendered.messages
            texts = (_read_text(each.message) for each in messages if each.seq is None or each.seq not in whole)
            self._partial_text = normalize_text(" | ".join(texts))
        return self._partial_text


def _read_text(message: Message) -> str:
    return " | ".join((message.text, *(result.text for result in message.tool_results)))
