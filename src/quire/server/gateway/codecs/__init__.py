"""Codecs of the gateway, one per wire format."""

from quire.server.gateway.codecs.base import Codec
from quire.server.gateway.codecs.chat import ChatCodec
from quire.server.gateway.codecs.messages import MessagesCodec
from quire.server.gateway.codecs.responses import ResponsesCodec
from quire.settings.schema import FormatName, Upstream

CHAT = ChatCodec()
MESSAGES = MessagesCodec()
RESPONSES = ResponsesCodec()
CODECS: dict[FormatName, Codec] = {codec.name: codec for codec in (CHAT, MESSAGES, RESPONSES)}


def choose_target(codec: Codec, upstream: Upstream) -> Codec:
    """The codec of an upstream for requests of a client's format: the same if the upstream speaks it."""
    return codec if codec.name in upstream.speaks else CODECS[upstream.speaks[0]]
