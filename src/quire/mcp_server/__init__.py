"""MCP server: agents of other programs search and read what Quire has stored.

`quire mcp` serves it through pipes and the server under `/mcp`. The client side, with which Quire's own agents call the
tools of other MCP servers, is `quire.agent.mcp`; the two share nothing but the protocol.
"""
