"""OpenAI's chat completions."""

from quire.model.policy import WireFormatName

FORMAT: WireFormatName = "chat"
