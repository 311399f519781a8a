"""Google's Gemini API."""

from quire.model.policy import WireFormatName

FORMAT: WireFormatName = "gemini"
