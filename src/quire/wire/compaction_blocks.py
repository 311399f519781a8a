"""Compactions by a provider in the messages of a conversation: a block or an item that replaces all before it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.model import Message
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
