"""Anthropic's Messages."""

from quire.model.policy import WireFormatName

FORMAT: WireFormatName = "messages"
