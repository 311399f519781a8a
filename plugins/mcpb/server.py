"""`quire mcp`, started by a host of MCP bundles with the environment of this folder."""

import sys

from quire.cli import main

if __name__ == "__main__":
    sys.argv = ["quire", "mcp"]
    main()
