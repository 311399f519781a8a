"""Edits of single items in the list that a client sends, without parsing it to messages.

What an edit does not name stays as the client sent it, field by field: providers sign and cache bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from quire.model.entry_bodies import ListAnchor
from quire.model.json_values import dump_json, filter_objects, is_object
from quire.wire import WireMessage

ANCHOR_DIGEST_CHARS = 32
"""Hexadecimal characters of a digest in an anchor."""


class ItemEditor(ABC):
    """Edits items of one wire format."""

    @abstractmethod
    def list_results(self, item: WireMessage) -> Iterator[tuple[str, object]]:
        """The tool results of an item: the ID of the call, and the content."""

    @abstractmethod
    def list_calls(self, item: WireMessage) -> Iterator[tuple[str, str, object]]:
        """The tool calls of an item: ID, name and arguments."""

    @abstractmethod
    def replace_results(self, item: WireMessage, stubs: Mapping[str, str]) -> WireMessage:
        """The item with a text in place of each of these results."""

    @abstractmethod
    def is_question(self, item: WireMessage) -> bool:
        """Whether the item is a message of the user that has no tool results."""

    def is_user_item(self, item: WireMessage) -> bool:
        """Whether something can be quoted behind this item."""
        return self.is_question(item) or any(True for _ in self.list_results(item))

    def is_sealed_summary(self, item: WireMessage) -> bool:
        """Whether the item is a summary that only the provider can read."""
        return False

    @abstractmethod
    def replace_text(self, item: WireMessage, text: str) -> WireMessage:
        """The item with one text in place of all its texts and media. Calls, results and reasoning stay."""

    @abstractmethod
    def quote_behind(self, item: WireMessage, text: str) -> Sequence[WireMessage]:
        """The item with another text of the user behind it."""

    def has_quote(self, items: Sequence[object], text: str) -> bool:
        """Whether the text is already quoted in the first of these items, or directly behind it."""
        texts = [self.list_texts(item) if is_object(item) else [] for item in items[:1]]
        for item in items[1:]:
            if not is_object(item) or not self.is_question(item):
                break
            texts.append(self.list_texts(item))
        return any(text in each for each in texts)

    def has_signed_thinking(self, item: WireMessage) -> bool:
        """Whether the item has reasoning that is bound to the list before it."""
        return False

    def strip_thinking(self, item: WireMessage) -> WireMessage | None:
        """The item without such reasoning, or None if nothing is left."""
        return item

    def join_texts(self, item: WireMessage) -> str:
        """All texts of a message, joined."""
        return "".join(self.list_texts(item))

    def list_texts(self, item: WireMessage) -> list[str]:
        content = item.get("content")
        if isinstance(content, str):
            return [content]
        return [text for block in filter_objects(content) if isinstance(text := block.get("text"), str)]

    def has_role(self, item: WireMessage, role: str) -> bool:
        return item.get("role") == role

    def remove_texts(self, item: WireMessage, texts: Collection[str]) -> WireMessage:
        """The item without blocks of these texts, if another one is left."""
        blocks = filter_objects(item.get("content"))
        remaining = [block for block in blocks if block.get("text") not in texts]
        return {**item, "content": remaining} if remaining and len(remaining) < len(blocks) else item

    def split_summary(self, item: WireMessage) -> tuple[WireMessage, Sequence[WireMessage]]:
        """A message with an agent's summary, and what the agent put behind the summary, as a separate item."""
        return item, ()

    def is_reply(self, item: WireMessage) -> bool:
        return item.get("role") == "assistant"

    def strip_markers(self, item: WireMessage) -> WireMessage:
        """The item without cache markers, with its content as a list."""
        content = item.get("content")
        blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content)
        plain = [{name: value for name, value in block.items() if name != "cache_control"} for block in blocks]
        return {**item, "content": plain}

    def make_anchor(self, items: Sequence[object], index: int) -> ListAnchor:
        item = items[index]
        stripped = self.strip_markers(item) if is_object(item) else item
        digest = sha256(dump_json(stripped).encode(errors="surrogatepass")).hexdigest()
        return ListAnchor(index=index, digest=digest[:ANCHOR_DIGEST_CHARS])

    def holds_anchor(self, items: Sequence[object], anchor: ListAnchor) -> bool:
        """Whether the list has this item at this place."""
        return anchor.index < len(items) and self.make_anchor(items, anchor.index) == anchor
