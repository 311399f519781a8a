"""`quire mcp`: the MCP server through pipes, which an agent starts."""

from typing import Annotated

import typer

from quire.cli.common import SetOptions, run_async
from quire.errors import MissingExtra


def command(
    *,
    write: Annotated[bool, typer.Option("--write", help="Offer tools that store memories and edit contexts.")] = False,
    overrides: SetOptions = None,
) -> None:
    """Serve the stored conversations to an agent as an MCP server on standard input and output.

    An agent starts this command itself: `claude mcp add quire -- quire mcp`. It reads what is stored. With
    --write, agents may store memories and change what their own requests contain. Secrets are masked in all answers.
    """
    import signal
    from functools import partial
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise MissingExtra(extra="mcp", feature="The MCP server")
    from quire.cli.engine_setup import open_engine_from_settings
    from quire.mcp_server.server import serve_stdio

    # Agents stop the server by a signal, while a thread waits for input that no cancellation reaches.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    opener = partial(open_engine_from_settings, overrides)
    run_async(serve_stdio(opener, may_write=write))
