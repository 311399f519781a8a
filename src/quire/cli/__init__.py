"""The command line. Each group of commands has a file; what they do, the library does."""

import sys


def main() -> None:
    # Before anything is imported: the version is asked for by scripts, which wait for it.
    if sys.argv[1:] == ["--version"]:
        from quire import __version__

        sys.stdout.write(f"quire {__version__}\n")
        return
    import gc

    # What is imported stays; looking through it for garbage, again and again, would only make a short command longer.
    gc.disable()
    try:
        from quire.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        from quire.errors import MissingExtra

        sys.exit(str(MissingExtra(extra="cli", needed_for="The command line")))
    try:
        app(prog_name="quire")
    finally:
        _flush()


def _flush() -> None:
    """Whoever read our output may have gone, as `head` does; then there is nobody left to tell."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
