"""`Policy`: the resolved settings from which a view is assembled, without anything left to look up."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from quire.model.base import FrozenModel
from quire.model.json_values import is_object
from quire.rows.manifests import UNKNOWN_WINDOW

WireFormatName = Literal["chat", "messages", "responses", "gemini"]
"""Wire formats: OpenAI's chat completions, Anthropic's Messages, OpenAI's Responses."""
Slot = Literal["system", "tools", "memory", "references", "summary", "messages", "recall", "newest"]
PriorityClass = Literal["critical", "important", "normal", "low"]
ShareName = Literal[Slot, PriorityClass]

SLOTS: tuple[Slot, ...] = ("system", "tools", "memory", "references", "summary", "messages", "recall", "newest")
"""Slots in the order of the request: the stable prefix, then what is recalled for this request, then the question."""
MAX_MODEL_NAME_CHARS = 200
"""Maximum length of a model's name in a request to the server. A longer name belongs to no known model."""


SHARE_PRESETS: Mapping[str, Mapping[ShareName, float]] = {
    # A fifth for memory, 75 % for messages by their priority, and 5 % that nothing uses. The other slots are as in
    # the hybrid strategy.
    "classes": {
        "system": 0.10, "tools": 0.30, "references": 0.20, "recall": 0.20,
        "memory": 0.20, "critical": 0.30, "important": 0.25, "normal": 0.20,
    },
}  # fmt: skip
"""Named values of the setting `shares`."""


_FORMATS_BY_PROVIDER = {"openai": "chat", "anthropic": "messages", "openai_responses": "responses"}


class Policy(FrozenModel):
    """Model, window, thresholds and shares."""

    model: str
    wire_format: WireFormatName
    strategy: str = "hybrid"
    window: int = Field(gt=0)
    reserved_response_tokens: int = Field(default=512, ge=0)
    context_threshold: float = Field(default=0.85, gt=0, le=1)
    context_target: float = Field(default=0.5, gt=0, le=1)
    recent_messages_to_keep: int = Field(default=6, ge=0)
    min_recent_messages_to_keep: int = Field(default=2, ge=0)
    context_management_enabled: bool = True
    shares: dict[ShareName, float] | None = None
    """Shares of the input tokens by slot, and by priority class; each kind overrides the strategy's."""
    recall_tokens: int | None = Field(default=None, ge=0)
    """Maximum tokens of archived messages in the recall slot."""

    @model_validator(mode="before")
    @classmethod
    def _read_provider(cls, data: Any) -> Any:
        """Manifests that were stored before 17 November 2026 name the provider instead of its wire format."""
        if not is_object(data) or "provider" not in data:
            return data
        provider = data["provider"]
        others = {name: value for name, value in data.items() if name != "provider"}
        return {"wire_format": _FORMATS_BY_PROVIDER.get(str(provider), provider), **others}

    @property
    def has_known_window(self) -> bool:
        return self.window != UNKNOWN_WINDOW

    @property
    def max_input_tokens(self) -> int:
        """Maximum tokens of a request."""
        return max(0, self.window - self.reserved_response_tokens)

    @property
    def trigger_tokens(self) -> int:
        """A request with more tokens than this is compacted first."""
        return min(self.max_input_tokens, int(self.window * self.context_threshold))

    @property
    def target_tokens(self) -> int:
        """Tokens to which a compaction reduces a request: well below the trigger, so that compactions are rare."""
        return min(self.trigger_tokens, int(self.max_input_tokens * self.context_target))
