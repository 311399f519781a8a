"""MCP (Model Context Protocol) client. Only `servers` may be imported without the `mcp` extra."""
