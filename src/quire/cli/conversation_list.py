"""`quire conversation list` from a SQLite database, without SQLAlchemy, pydantic and Typer.

Their imports take several times as long as the rest. `quire.cli.conversation` is the command in all other cases:
with `--json`, `--set` and `--tag`, with settings that concern the database, and for every error.
"""

import os
import sqlite3
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.cli import paths
from quire.cli.output import WIDE_COLUMNS, format_local_time, make_table, make_text, print_drawing, to_one_line
from quire.errors import QuireError
from quire.rows import DEFAULT_TENANT
from quire.rows.conversations import ConversationListRow, is_readable, list_conversations

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

DEFAULT_LIMIT = 20
NO_CONVERSATION = (
    "There is no conversation yet. `quire run claude` records one, `quire import` reads those that agents have stored, "
    "and `quire chat` starts one."
)
OTHER_SETTINGS = frozenset(
    {
        "agent", "base_url", "context_limit", "context_management_enabled", "context_threshold", "embeddings", "model",
        "models", "recall_tokens", "recent_messages_to_keep", "reserved_response_tokens", "selection_top_k", "strategy",
        "summarizer", "tokenizer", "upstreams", "vault",
    }
)  # fmt: skip
"""Settings that do not concern the list of conversations. Any other one, or a wrong name, is left to the schema."""
BUSY_SECONDS = 5.0


def print_list(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Prints the list if these are the words of that command; returns False if the command has to run as usual."""
    limit, everything, rest = DEFAULT_LIMIT, False, list(words[2:])
    while rest:
        option = rest.pop(0)
        if option == "--all":
            everything = True
        elif option == "--limit" and rest and rest[0].isascii() and rest[0].isdecimal() and len(rest[0]) < 10:
            limit = int(rest.pop(0))
        else:
            return False
    if tuple(words[:2]) != ("conversation", "list") or not limit or not has_default_database(environ):
        return False
    path = paths.get_default_database_path()
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
        try:
            if not is_readable(connection, DEFAULT_TENANT, schema_version=find_schema_version()):
                return False
            listed = list_conversations(connection, DEFAULT_TENANT, limit=limit, everything=everything)
        finally:
            connection.close()
    except (sqlite3.Error, QuireError, ValueError, LookupError, TypeError):
        return False
    print_drawing(lambda console: draw_conversations(listed, console))
    return True


def has_default_database(environ: Mapping[str, str]) -> bool:
    """Whether the log is certainly in the user's own database, and not encrypted by a setting."""
    if any(name.startswith("QUIRE_") and name != "QUIRE_CONFIG" for name in environ):
        return False
    try:
        if paths.find_project_settings_path(Path.cwd()) is not None:
            return False
        users = tomllib.loads(paths.get_user_settings_path(environ).read_text("utf-8"))
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RecursionError):
        return False
    return OTHER_SETTINGS.issuperset(users)


def find_schema_version() -> str:
    """The version of the newest migration."""
    folder = Path(__file__).parents[1] / "db/migrations/versions"
    return max(each.name[:4] for each in folder.glob("[0-9][0-9][0-9][0-9]_*.py"))


def draw_conversations(listed: Sequence[ConversationListRow], console: "Console") -> "Iterable[RenderableType]":
    if not listed:
        yield make_text(NO_CONVERSATION)
        return
    counts = ("entries", "branches") if console.width >= WIDE_COLUMNS else ()
    rows = [
        (
            each.id,
            to_one_line(" ".join([each.title, *(f"[{tag}]" for tag in each.tags)])),
            format_local_time(each.updated_at),
            *((each.entries, each.branches) if counts else ()),
        )
        for each in listed
    ]
    yield make_table("id", "title", "updated", *counts, rows=rows, right_aligned=counts, wrapped=("title",))
