"""A tool as a model is told of it."""

from quire.model.value import Foreign, Value


class ToolDefinition(Value):
    """`parameters` is a JSON schema; `server` names the MCP server that offers the tool, if one does."""

    name: str
    description: str = ""
    parameters: Foreign
    server: str | None = None
