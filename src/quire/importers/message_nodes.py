"""Trees of messages as exports have them: nodes that hold several messages, or none."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from quire.importers.base import SourceError, SourceMessage
from quire.importers.trees import order_tree
from quire.model import Message, Role, TextPart, Usage

MISSING_CONTENT_TEXT = "[not in the export]"


class MessageNode(NamedTuple):
    """One node of a tree. A node without messages has no place in the log: its children follow its parent."""

    id: str
    parent: str | None
    messages: tuple[Message, ...] = ()
    """In order; a reply with tool calls and their results is several messages."""
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

    A missing parent, a second node with the same id, and a node that is its own ancestor are errors; the node with a
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
        messages += _chain_messages(node, parent=_find_end(node.parent, by_id, ends))
    yield from order_tree(messages, leaf=_find_end(leaf, by_id, ends))


def _chain_messages(node: MessageNode, *, parent: str | None) -> Iterator[SourceMessage]:
    for index, message in enumerate(node.messages):
        is_last = index == len(node.messages) - 1
        id_ = _message_id(node, index)
        yield SourceMessage(
            id=id_,
            parent=parent,
            message=message,
            at=node.at,
            usage=node.usage if is_last else None,
            dropped=node.dropped if index == 0 else (),
        )
        parent = id_


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
