"""OpenAI's Responses."""

from quire.model.policy import WireFormatName

FORMAT: WireFormatName = "responses"
