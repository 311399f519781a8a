"""What acts on the model's behalf: the tools that it calls, Python functions and MCP servers.

A tool that fails, hangs or answers nonsense gives the model an error to read, and never ends the turn.
"""
