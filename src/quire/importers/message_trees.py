"""Trees of messages: exports whose nodes hold several messages or none, replies with tool calls and their results, and
the order in which an import needs the messages.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from quire.model import Message, Part, Role, TextPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json
from quire.model.messages import ToolResultContent
from quire.sources.base import SourceCompaction, SourceError, SourceMessage

MISSING_CONTENT_TEXT = "[not in the export]"


def order_tree(messages: Sequence[SourceMessage], *, leaf: str | None = None) -> Iterator[SourceMessage | SourceError]:
    """Yields every message after its parent, the path to `leaf` first; without one, in the order given.

    A message whose parent is unknown becomes a root. Messages on a cycle, and a second one with the same id, are
    errors.
    """
    by_id: dict[str, SourceMessage] = {}
    for each in messages:
        if each.id in by_id:
            yield SourceError.of(each.id, "Another message of the conversation has the same id.")
        else:
            by_id[each.id] = each
    children: dict[str | None, list[str]] = {}
    for each in by_id.values():
        children.setdefault(each.parent if each.parent in by_id else None, []).append(each.id)
    path: set[str] = set()
    while leaf in by_id and leaf not in path:
        path.add(leaf)
        parent = by_id[leaf].parent
        siblings = children[parent if parent in by_id else None]
        siblings.remove(leaf)
        siblings.insert(0, leaf)
        leaf = parent
    seen: set[str] = set()
    pending = children.get(None, [])[::-1]
    while pending:
        each = by_id[pending.pop()]
        seen.add(each.id)
        yield each if each.parent in by_id else each._replace(parent=None)
        pending += children.get(each.id, [])[::-1]
    for id_ in by_id.keys() - seen:
        yield SourceError.of(id_, "The message is its own ancestor.")


class MessageNode(NamedTuple):
    """One node of a tree. A node without messages has no place in the log: its children follow its parent."""

    id: str
    parent: str | None
    messages: tuple[Message, ...] = ()
    """In order. A reply with tool calls and their results is several messages."""
    at: int | None = None
    usage: Usage | None = None
    dropped: tuple[str, ...] = ()


def mark_missing(messages: tuple[Message, ...], *, role: Role, dropped: Collection[str]) -> tuple[Message, ...]:
    """The messages, or a placeholder for a message of which nothing but its place could be carried over."""
    if messages or not dropped:
        return messages
    return (Message(role=role, parts=(TextPart(text=MISSING_CONTENT_TEXT),)),)


def order_nodes(nodes: Iterable[MessageNode], *, leaf: str | None) -> Iterator[SourceMessage | SourceError]:
    """Yields the messages of all nodes, parents first and the path to `leaf` before other branches.

    A missing parent, a second node with the same id, and a node that is its own ancestor are errors. The node with a
    missing parent is still read, as the first message of a branch.
    """
    by_id: dict[str, MessageNode] = {}
    for node in nodes:
        if node.id in by_id:
            yield SourceError.of(node.id, "Another message of the conversation has the same id.")
        else:
            by_id[node.id] = node
    ends: dict[str, str | None] = {}
    messages: list[SourceMessage] = []
    for node in by_id.values():
        if node.messages and node.parent is not None and node.parent not in by_id:
            yield SourceError.of(node.id, "The message before it is not in the export, so it begins a branch.")
        parent = _find_end(node.parent, by_id, ends)
        last = len(node.messages) - 1
        for index, message in enumerate(node.messages):
            messages.append(
                SourceMessage(
                    id=_message_id(node, index),
                    parent=parent,
                    message=message,
                    at=node.at,
                    usage=node.usage if index == last else None,
                    dropped=node.dropped if index == 0 else (),
                )
            )
            parent = messages[-1].id
    yield from order_tree(messages, leaf=_find_end(leaf, by_id, ends))


def _message_id(node: MessageNode, index: int) -> str:
    return f"{node.id}#{index + 1}" if index else node.id


def _find_end(id_: str | None, by_id: dict[str, MessageNode], ends: dict[str, str | None]) -> str | None:
    """Id of the last message of this node, or of the nearest ancestor that has one. `ends` is a cache."""
    empty: list[str] = []
    while id_ is not None and id_ in by_id and id_ not in ends:
        node = by_id[id_]
        if node.messages:
            ends[id_] = _message_id(node, len(node.messages) - 1)
            break
        # Set before its ancestors are known, so that a cycle of empty nodes ends.
        ends[id_] = None
        empty.append(id_)
        id_ = node.parent
    end = ends.get(id_) if id_ is not None else None
    ends.update(dict.fromkeys(empty, end))
    return end


class MessageLinks:
    """Links the items of a file, of which one may hold several messages or none, to a tree of messages."""

    def __init__(self) -> None:
        self._ends: dict[str, str | None] = {}
        """Id of the last message of each item; for one without messages, of the message before it."""
        self._messages: dict[str, list[str]] = {}
        """Ids of the messages of each item."""
        self.last: str | None = None
        """The item that was added last."""

    def add(
        self,
        id_: str,
        messages: Iterable[Message] = (),
        *,
        after: str | None,
        at: int | None = None,
        usage: Usage | None = None,
        cost_usd: float | None = None,
        compaction: SourceCompaction | None = None,
        dropped: tuple[str, ...] = (),
    ) -> Iterator[SourceMessage]:
        """The messages of an item that follows the item `after`. Usage and cost belong to its first reply.

        An item that is known by its id already is not added again.
        """
        if id_ in self._ends:
            return
        parent = self._ends.get(after) if after is not None else None
        added = self._messages[id_] = []
        is_compaction = compaction is not None and parent is not None
        for index, message in enumerate(messages):
            each = SourceMessage(f"{id_}:{index + 1}" if index else id_, parent, message, at, dropped=dropped)
            dropped = ()
            if is_compaction and index == 0:
                each = each._replace(compaction=compaction, usage=usage, cost_usd=cost_usd)
                usage = cost_usd = None
            elif message.role == "assistant":
                each = each._replace(usage=usage, cost_usd=cost_usd)
                usage = cost_usd = None
            yield each
            added.append(each.id)
            parent = each.id
        self._ends[id_] = parent
        self.last = id_

    def get_end(self, id_: str | None) -> str | None:
        """Id of the last message of an item, or of the one before an item without messages."""
        return self._ends.get(id_) if id_ is not None else None

    def get_messages(self, id_: str) -> list[str]:
        """Ids of the messages of an item."""
        return self._messages.get(id_, [])

    def list_messages(self, first: str) -> tuple[str, ...]:
        """Ids of the messages from the item `first` on, in the order of the file."""
        items = list(self._messages)
        if first not in self._messages:
            return ()
        return tuple(id_ for item in items[items.index(first) :] for id_ in self._messages[item])


class ToolTurn:
    """Splits a reply that holds tool calls and their results in one list into the messages that a provider expects.

    Its parts are added in order: what the assistant says, its calls, and their results.
    """

    def __init__(self, id_: str, *, open_calls: list[str] | None = None) -> None:
        """`open_calls` are the ids of earlier calls without a result, which is changed in place."""
        self._id = id_
        self._messages: list[Message] = []
        self._parts: list[Part] = []
        self._results: list[ToolResultPart] = []
        self._open_calls = [] if open_calls is None else open_calls
        self._call_count = 0

    def add(self, *parts: Part) -> None:
        """Adds what the assistant says. Results before it end the message with their calls."""
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
        """Adds the result of a call. Without an id, of the first call that has none."""
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
