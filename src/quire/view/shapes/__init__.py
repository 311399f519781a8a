"""Messages in the shapes that providers take: one module a provider renders, one checks, one parses."""

from quire.view.shapes.anthropic import AnthropicShape
from quire.view.shapes.base import Load, Provider, Reply, Shape, Unit
from quire.view.shapes.openai import OpenAIShape

__all__ = ["AnthropicShape", "Load", "OpenAIShape", "Provider", "Reply", "Shape", "Unit", "provider_of", "shape_for"]


def shape_for(provider: Provider, *, model: str = "") -> Shape:
    """The shape of a provider's requests; it needs the model only to know what pictures cost."""
    return AnthropicShape(model) if provider == "anthropic" else OpenAIShape(model)


def provider_of(model: str) -> Provider:
    """Whose shape a model takes. `anthropic/claude-…` is a router's name for it, and routers take OpenAI's shape."""
    return "anthropic" if model.lower().startswith(("claude", "anthropic:")) else "openai"
