"""Which record a command is about: that of a request that was answered, or that of the next."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.engine import Conversation
    from quire.model import Manifest


async def manifest_of(conversation: "Conversation", reply: int | None) -> "Manifest":
    """The record of the request that this reply answered; without one, of the next, which is not made by asking."""
    return await conversation.preview() if reply is None else await conversation.manifest(reply)
