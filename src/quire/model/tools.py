"""Tool definitions, as they are sent to a model."""

from quire.model.base import FrozenModel, JsonObject


class ToolDefinition(FrozenModel):
    """`parameters` is a JSON schema; `server` names the MCP server that offers the tool, if one does."""

    name: str
    description: str = ""
    parameters: JsonObject
    server: str | None = None
