"""The agent loop: turns, tool calls, approvals, Python functions as tools, and MCP servers.

A tool that fails, hangs or returns an invalid result gives the model an error to read; it never ends the turn.
"""
