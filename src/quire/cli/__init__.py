"""The command line. Each group of commands has a file; what they do, the library does."""

import sys

from quire.errors import MissingExtra, QuireError


def main() -> None:
    try:
        from quire.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name != "typer":
            raise
        sys.exit(str(MissingExtra(extra="cli", needed_for="The command line")))
    try:
        app()
    except QuireError as error:
        sys.exit(f"quire: {error}")
