"""`quire statusline`: one line on an agent's session for the agent's own status line.

The agent runs it after every message, so it imports only the standard library and asks the user's server.
"""

import sys

from quire.cli.service_client import connect_service

MAX_EVENT_BYTES = 1_000_000
"""Maximum size of what the agent sends; a longer text is not read."""
NOT_RUNNING = "Quire is not running: `quire service install` keeps it running."


def command() -> None:
    """Print the status line of an agent's session: window, cache share, cost, and compactions.

    Claude Code runs it with a JSON object on standard input. Name it in `~/.claude/settings.json`:
    `{"statusLine": {"type": "command", "command": "quire statusline"}}`.
    """
    print_status_line()


def print_status_line() -> None:
    """Prints the line that the server answers. Without a server it says so, and never fails the agent."""
    # The server parses the event: importing a parser would take as long as everything else here. JSON has line breaks
    # only between its tokens.
    event = sys.stdin.buffer.read(MAX_EVENT_BYTES).replace(b"\n", b" ").replace(b"\r", b" ").strip() or b"{}"
    connection = connect_service()
    line = connection.exchange(b'{"command": "statusline", "event": ' + event + b"}") if connection is not None else b""
    sys.stdout.buffer.write((line or NOT_RUNNING.encode()) + b"\n")
    sys.stdout.flush()
