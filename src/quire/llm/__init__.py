"""Model access: a prompt in, a reply or a stream of chunks out, provider errors mapped to `ModelError` classes.

Nothing here needs the `llm` extra until `get_model` is called.
"""

from quire.llm.factory import get_model
from quire.llm.protocol import Model, ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.view.wire_formats import Reply

__all__ = ["Model", "ModelChunk", "Prompt", "Reply", "TextDelta", "ThinkingDelta", "ToolCallDelta", "get_model"]
