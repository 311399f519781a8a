"""A text in the user's own editor."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from quire.errors import InvalidRequest

FALLBACK = "vi"


def edited(text: str) -> str:
    """The text as the user left it; `$VISUAL` or `$EDITOR` says which editor, with options if it has any."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or FALLBACK
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "summary.md"
        file.write_text(text, "utf-8")
        try:
            outcome = subprocess.run([*shlex.split(named), str(file)], check=False)  # noqa: S603 (the user's own choice)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"The editor {named!r} cannot be started: {error}. Set $EDITOR, or use --text."
            ) from error
        if outcome.returncode:
            raise InvalidRequest(f"The editor {named!r} ended with {outcome.returncode}; nothing was changed.")
        return file.read_text("utf-8")
