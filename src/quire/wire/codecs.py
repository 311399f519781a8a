"""Codecs, one per wire format."""

from collections.abc import Sequence

from quire.errors import InvalidRequest
from quire.model.policy import WireFormatName
from quire.wire.chat.codec import ChatCodec
from quire.wire.codec import Codec
from quire.wire.gemini.codec import GeminiCodec
from quire.wire.messages.codec import MessagesCodec
from quire.wire.responses.codec import ResponsesCodec

CHAT = ChatCodec()
MESSAGES = MessagesCodec()
RESPONSES = ResponsesCodec()
GEMINI = GeminiCodec()
CODECS: dict[WireFormatName, Codec] = {codec.name: codec for codec in (CHAT, MESSAGES, RESPONSES, GEMINI)}


def choose_only_format(spoken: Sequence[WireFormatName]) -> Codec:
    """The codec of an upstream for requests that belong to no format, such as its list of models."""
    return CODECS[spoken[0]] if len(set(spoken)) == 1 else CHAT


def choose_target(codec: Codec, spoken: Sequence[WireFormatName]) -> Codec:
    """The codec of an upstream for requests of a client's format: the same if the upstream speaks it.

    Raises `InvalidRequest` for a translation from or to Gemini, which there is not.
    """
    if codec.name in spoken:
        return codec
    if codec is GEMINI:
        raise InvalidRequest(
            f"This model's upstream speaks {' and '.join(spoken)}, and requests of Gemini are not translated. Choose a "
            "model whose upstream speaks gemini, or a client of chat completions, Messages or Responses."
        )
    for name in spoken:
        if name != GEMINI.name:
            return CODECS[name]
    raise InvalidRequest(
        f"This model's upstream speaks gemini, and {codec.name} is not translated to it. Use a client of Gemini, or "
        "set the upstream to Google's address for chat completions, which ends with /v1beta/openai, and to speak chat."
    )
