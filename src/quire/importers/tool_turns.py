"""Replies that hold tool calls and their results in one list, split into the messages that a provider expects."""

from collections.abc import Iterable, Iterator

from quire.model import Message, Part, ToolCallPart, ToolResultPart
from quire.model.messages import ToolResultContent
from quire.view.wire_formats.fields import dump_json


class ToolTurn:
    """Collects the parts of one reply in order: what the assistant says, its calls, and their results."""

    def __init__(self, id_: str, *, open_calls: list[str] | None = None) -> None:
        """`open_calls` are the ids of earlier calls without a result, which is changed in place."""
        self._id = id_
        self._messages: list[Message] = []
        self._parts: list[Part] = []
        self._results: list[ToolResultPart] = []
        self._open_calls = [] if open_calls is None else open_calls
        self._call_count = 0

    def add(self, *parts: Part) -> None:
        """Adds what the assistant says; results before it end the message with their calls."""
        if parts and self._results:
            self._end_step()
        self._parts += parts

    def call(self, name: str, arguments: object, *, call_id: str | None = None) -> None:
        """Adds a call; `arguments` is JSON text or a value."""
        if self._results:
            self._end_step()
        self._call_count += 1
        # The reply's id makes it unique in the conversation where the source has none.
        call_id = call_id or f"{self._id}:{self._call_count}"
        text = arguments if isinstance(arguments, str) else dump_json({} if arguments is None else arguments)
        self._parts.append(ToolCallPart(id=call_id, name=name, arguments=text))
        self._open_calls.append(call_id)

    def answer(
        self, content: Iterable[ToolResultContent], *, call_id: str | None = None, is_error: bool = False
    ) -> None:
        """Adds the result of a call; without an id, of the first call that has none."""
        if call_id is None or call_id not in self._open_calls:
            call_id = self._open_calls[0] if self._open_calls else call_id or f"{self._id}:{self._call_count}"
        if call_id in self._open_calls:
            self._open_calls.remove(call_id)
        self._results.append(ToolResultPart(call_id=call_id, content=tuple(content), is_error=is_error))

    def finish(self) -> Iterator[Message]:
        """The messages: of the assistant, and one for each result."""
        self._end_step()
        yield from self._messages

    def _end_step(self) -> None:
        if self._parts:
            self._messages.append(Message(role="assistant", parts=tuple(self._parts)))
        self._messages += [Message(role="tool", parts=(result,)) for result in self._results]
        self._parts, self._results = [], []
