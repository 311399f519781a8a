"""The command line. Each group of commands has a module; the commands call the library."""

import os
import sys
from io import TextIOWrapper

CLOSED_PIPE_EXIT_CODE = 141
"""Exit code of a command whose reader has closed the pipe, as a shell reports SIGPIPE."""


class PipedOutput(TextIOWrapper):
    """Standard output that ends the command when its reader has closed the pipe, as `head` does.

    It raises no `BrokenPipeError`, for which each library that prints has another answer.
    """

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            sys.exit(self._discard_rest())

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            sys.exit(self._discard_rest())

    def _discard_rest(self) -> int:
        # What is buffered is written when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        return CLOSED_PIPE_EXIT_CODE


def end_with_reader() -> None:
    """Makes a closed pipe the end of the command."""
    stream = sys.stdout
    if type(stream) is TextIOWrapper and not stream.isatty():
        encoding, errors = stream.encoding, stream.errors
        line_buffering, write_through = stream.line_buffering, stream.write_through
        sys.stdout = PipedOutput(
            stream.detach(), encoding, errors, line_buffering=line_buffering, write_through=write_through
        )


def main() -> None:
    end_with_reader()
    try:
        _run()
    finally:
        sys.stdout.flush()


def _run() -> None:
    # Before any other import, because scripts wait for the version.
    if sys.argv[1:] == ["--version"]:
        from quire import __version__

        sys.stdout.write(f"quire {__version__}\n")
        return
    # An agent waits for its hooks, which need nothing of what other commands import.
    if len(sys.argv) == 3 and sys.argv[1] == "hook" and sys.argv[2] in ("claude-code", "codex"):
        from quire.cli.hook_client import run_hook

        run_hook(sys.argv[2])
        return
    if sys.argv[1:2] == ["run"]:
        from quire.cli.run_client import parse_words, run

        words = parse_words(sys.argv[2:])
        exit_code = run(words) if words is not None else None
        if exit_code is not None:
            sys.exit(exit_code)
    if sys.argv[1:] == ["statusline"]:
        from quire.cli.statusline import print_status_line

        print_status_line()
        return
    import gc

    from quire.cli.command_groups import COMMAND_GROUPS

    # Pydantic's search for plugins reads the metadata of every installed package. Commands that serve or run other
    # programs may have plugins.
    if len(sys.argv) > 1 and sys.argv[1] in COMMAND_GROUPS:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Imported objects live until the end; collecting among them again and again would only slow a short command.
    gc.disable()
    from quire.cli.platforms import replace_unencodable

    replace_unencodable(sys.stdout, sys.stderr)
    try:
        from quire.cli.app import app

        app(prog_name="quire")
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        from quire.errors import MissingExtra

        hint = "The library alone is installed; `pip install quire` adds the command line and the server."
        sys.exit(f"{MissingExtra(extra='cli', feature='The command line')}\n{hint}")
    finally:
        sys.stdout.flush()
