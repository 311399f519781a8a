"""Why a reply ended: the finish reasons of all providers, and the four that Quire tells apart."""

from typing import Literal

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why a reply ended, in the words of chat completions."""

_FINISH_REASONS: dict[str, FinishReason] = {
    # Chat completions
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    # Anthropic Messages
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    # OpenAI Responses: the reason of an incomplete response, or else its status
    "completed": "stop",
    "max_output_tokens": "length",
    "incomplete": "length",
    # Mistral; Gemini, which also has MAX_TOKENS and writes all of them in capitals
    "model_length": "length",
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "image_safety": "content_filter",
    "image_prohibited_content": "content_filter",
    "language": "content_filter",
    "model_armor": "content_filter",
    "other": "stop",
    "malformed_function_call": "stop",
    "unexpected_tool_call": "stop",
    "too_many_tool_calls": "stop",
    "missing_thought_signature": "stop",
}


def normalize_finish_reason(reason: str | None) -> FinishReason | None:
    """Translates a provider's finish reason, or None if there is none or it is unknown."""
    return _FINISH_REASONS.get(reason.lower()) if reason is not None else None


def is_truncated(reason: str | None) -> bool:
    """Whether a reply with this finish reason was cut off at its token limit or at the end of the context window."""
    return normalize_finish_reason(reason) == "length"
