"""Compactions in the messages of a conversation: blocks and items of a provider that replace all before them, and the
replies that are a summary."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from quire.model import Compaction, Entry, Message
from quire.model.json_values import get_object, get_text
from quire.wire.messages import FORMAT as MESSAGES_FORMAT
from quire.wire.responses import FORMAT as RESPONSES_FORMAT

COMPACTION_TYPES = ("compaction", "compaction_summary", "context_compaction")


class CompactionBlock(NamedTuple):
    """A block of Anthropic's Messages, or an item of OpenAI's Responses."""

    fields: Mapping[str, Any]

    @property
    def summary(self) -> str | None:
        """The summary, if the provider shows it."""
        return get_text(self.fields, "content")


def find_compaction_block(message: Message) -> CompactionBlock | None:
    """The last compaction in a message."""
    if message.role != "assistant":
        return None
    for part in reversed(message.parts):
        for name in (MESSAGES_FORMAT, RESPONSES_FORMAT):
            fields = get_object(part.provider_fields or {}, name)
            if fields.get("type") in COMPACTION_TYPES:
                return CompactionBlock(fields)
    return None


def read_sealed(message: Message) -> str | None:
    """The content of a summary that only the provider can read."""
    block = find_compaction_block(message)
    return get_text(block.fields, "encrypted_content") if block is not None else None


def read_summary(message: Message) -> str | None:
    """The text of a reply that is a summary, or None if it is sealed."""
    return None if read_sealed(message) is not None else message.text


def is_compaction_trigger(message: Message) -> bool:
    """Whether it is the item by which a client has OpenAI compact its list."""
    fields = (get_object(part.provider_fields or {}, RESPONSES_FORMAT) for part in message.parts)
    return any(each.get("type") == "compaction_trigger" for each in fields)


def drop_summary_requests(entries: Iterable[Entry]) -> list[Entry]:
    """The messages without requests for summaries and their answers, where an agent has them at the end of its list.

    A compaction follows its summary and the request for it. A reply of a provider may have more than a summary, and
    answers the user.
    """
    messages: list[Entry] = []
    for entry in entries:
        if entry.kind == "message":
            messages.append(entry)
        elif isinstance(compaction := entry.body, Compaction) and messages and messages[-1].role == "assistant":
            reply = messages[-1].message
            has_more = reply.tool_calls or (compaction.is_sealed and len(reply.parts) > 1)
            if has_more or read_summary(reply) != compaction.summary:
                continue
            is_requested = len(messages) > 1 and messages[-2].role == "user" and compaction.trigger != "provider"
            del messages[-2 if is_requested else -1 :]
    return messages
