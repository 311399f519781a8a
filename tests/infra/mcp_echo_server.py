"""A small MCP server over pipes with one tool, run as `python -m infra.mcp_echo_server`."""

from mcp.server import MCPServer

server = MCPServer("harbour")


@server.tool()
def measure_tide(quay: str) -> str:
    """Returns the height of the tide at a quay."""
    return f"The tide at {quay} is 2.4 m."


if __name__ == "__main__":
    server.run("stdio")
