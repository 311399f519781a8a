"""Access to models: one prompt in, one reply or a stream of chunks out, errors sorted.

Nothing here needs the `llm` extra until a model is asked for by name.
"""

from quire.llm.access import Chunk, Model, Prompt, TextDelta, ThinkingDelta, ToolCallDelta, model_named
from quire.view.shapes import Reply

__all__ = ["Chunk", "Model", "Prompt", "Reply", "TextDelta", "ThinkingDelta", "ToolCallDelta", "model_named"]
