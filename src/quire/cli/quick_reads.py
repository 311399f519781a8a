"""Commands that read a SQLite database without SQLAlchemy, pydantic and Typer, whose imports take longer than the rest.

These are `quire conversation list` and, for the recorded requests of agents, `quire context show`. The usual command
runs in all other cases: with other options, settings that concern the database, another schema, encrypted rows, the
next request of a conversation, and for every error. Both draw by the same functions, from rows that both decode by
`quire.rows`.
"""

import os
import sqlite3
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.cli import paths
from quire.cli.output import DrawFunction, print_drawing
from quire.errors import QuireError
from quire.rows import DEFAULT_TENANT
from quire.rows.conversations import is_readable, list_conversations
from quire.rows.requests import find_request

DEFAULT_LIMIT = 20
MAX_NUMBER_CHARS = 9
OTHER_SETTINGS = frozenset(
    {
        "agent", "base_url", "context_limit", "context_management_enabled", "context_threshold", "embeddings", "model",
        "models", "recall_tokens", "recent_messages_to_keep", "reserved_response_tokens", "selection_top_k", "strategy",
        "summarizer", "tokenizer", "upstreams", "vault",
    }
)  # fmt: skip
"""Settings that do not concern what is stored. Any other one, or a wrong name, is left to the schema."""
BUSY_SECONDS = 5.0


def print_quickly(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Prints the result if these are the words of such a command; returns False if it has to run as usual."""
    read = {"conversation list": read_list, "context show": read_request}.get(" ".join(words[:2]))
    if read is None or not has_default_database(environ):
        return False
    try:
        connection = sqlite3.connect(
            f"{paths.get_default_database_path().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS
        )
        try:
            if not is_readable(connection, DEFAULT_TENANT, schema_version=find_schema_version()):
                return False
            draw = read(connection, words[2:])
        finally:
            connection.close()
    except (sqlite3.Error, QuireError, ValueError, LookupError, TypeError):
        return False
    if draw is None:
        return False
    print_drawing(draw)
    return True


def read_list(connection: sqlite3.Connection, words: Sequence[str]) -> DrawFunction | None:
    limit, everything, rest = DEFAULT_LIMIT, False, list(words)
    while rest:
        match rest:
            case ["--all", *rest]:
                everything = True
            case ["--limit", number, *rest] if is_number(number):
                limit = int(number)
            case _:
                return None
    if not limit:
        return None
    from quire.cli.conversation_list import draw_conversations

    listed = list_conversations(connection, DEFAULT_TENANT, limit=limit, everything=everything)
    return lambda console: draw_conversations(listed, console)


def read_request(connection: sqlite3.Connection, words: Sequence[str]) -> DrawFunction | None:
    from quire.cli.context_window import ContextSection, draw_request

    conversation, numbers, unfolded, rest = None, dict[str, int](), list[ContextSection](), list(words)
    while rest:
        match rest:
            case ["--all", *rest]:
                unfolded = list(ContextSection)
            case ["--unfold", section, *rest]:
                unfolded.append(ContextSection(section))
            case [("--branch" | "--reply") as option, number, *rest] if is_number(number):
                numbers[option] = int(number)
            case [name, *rest] if conversation is None and not name.startswith("-"):
                conversation = name
            case _:
                return None
    branch, reply = numbers.get("--branch"), numbers.get("--reply")
    if reply == 0:
        return None
    found = find_request(connection, DEFAULT_TENANT, conversation=conversation, branch=branch, reply=reply)
    if found is None or any(each.reason == "restored" for each in found.manifest.included):
        # What came back is counted from the log.
        return None
    return lambda console: draw_request(
        found.manifest, console, reply=found.reply.seq, unfolded=unfolded, answer=found.reply
    )


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_NUMBER_CHARS


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
