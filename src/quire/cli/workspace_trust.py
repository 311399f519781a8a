"""Workspace trust: what the settings file of a folder decides before the user trusts it.

A cloned repository may bring a `quire.toml`. Without trust it decides how a context is built, and nothing else: no
program runs, no host gets a message or a credential, and no other database is used because of it. Trust is remembered
by the file's path and a digest of its contents, so a change of the file ends it.
"""

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from quire.cli import paths
from quire.cli.output import pluralize, print_note, sanitize, to_one_line
from quire.errors import InvalidConfiguration
from quire.model.base import FrozenModel
from quire.settings.sources import SettingsLayer, read_settings_file, resolve_aliases

HARMLESS_SETTINGS = frozenset(
    {
        "compact_when",
        "context_background_threshold",
        "context_limit",
        "context_management_enabled",
        "context_threshold",
        "context_tools",
        "document_share",
        "memory_integration",
        "min_recent_messages_to_keep",
        "recall_tokens",
        "recent_messages_to_keep",
        "reserved_response_tokens",
        "selection_min_score",
        "selection_top_k",
        "shares",
        "strategy",
    }
)
"""Settings that a folder may decide without trust. A setting that is not listed needs it, also a new one."""
PATH_SETTINGS = ("agent", "vault")
"""Settings whose relative paths start at the folder of the settings file."""


class TrustDecision(FrozenModel):
    """What the user has decided about a settings file."""

    digest: str
    decision: Literal["trusted", "refused"]


class ProjectFile(NamedTuple):
    """The settings file of a folder, as it is now."""

    path: Path
    values: Mapping[str, Any]
    digest: str
    """Of the file, of its agent and of the agent's list of servers."""
    is_own: bool
    """Whether it belongs to the user who runs this program."""

    @property
    def restricted(self) -> dict[str, Any]:
        """The settings that need trust: of another user's file all of them."""
        return {name: value for name, value in self.values.items() if not self.is_own or name not in HARMLESS_SETTINGS}


Decide = Callable[[ProjectFile], bool]
"""Decides whether a file with restricted settings is trusted, if the user has not decided before."""


def read_project_file(folder: Path, environ: Mapping[str, str] = os.environ) -> ProjectFile | None:
    """Reads the settings file that applies in a folder; None if there is none, or if it is the user's own one."""
    path = paths.find_project_settings_path(folder)
    users = paths.get_user_settings_path(environ)
    if path is None or (users.exists() and users.samefile(path)):
        return None
    source, given = read_settings_file(path)
    values = resolve_aliases(source, given)
    for name in PATH_SETTINGS:
        if isinstance(values.get(name), str):
            values[name] = str(path.parent / Path(values[name]).expanduser())
    digest = sha256(path.read_bytes())
    for file in _list_agent_files(values):
        digest.update(f"\0{file}\0".encode() + file.read_bytes())
    is_own = sys.platform == "win32" or {path.stat().st_uid, path.lstat().st_uid} == {os.getuid()}
    return ProjectFile(path, values, digest.hexdigest(), is_own)


def read_trusted_layer(folder: Path, decide: Decide, environ: Mapping[str, str] = os.environ) -> SettingsLayer | None:
    """The settings of a folder's file that apply: all if it is trusted, else the harmless ones."""
    file = read_project_file(folder, environ)
    if file is None:
        return None
    restricted = file.restricted
    if not restricted or is_trusted(file, decide):
        return SettingsLayer(str(file.path), file.values)
    _note_ignored(file.path, tuple(restricted))
    return SettingsLayer(str(file.path), {name: file.values[name] for name in file.values if name not in restricted})


def is_trusted(file: ProjectFile, decide: Decide) -> bool:
    known = read_decisions().get(str(file.path))
    if known is not None and known.digest == file.digest:
        return known.decision == "trusted"
    return decide(file)


def ask_or_refuse(file: ProjectFile) -> bool:
    """Asks on a terminal and remembers the answer. Without one there is no answer, so nothing starts."""
    if not (file.is_own and sys.stdin.isatty() and sys.stderr.isatty()):
        owner = "" if file.is_own else " belongs to another user and"
        raise InvalidConfiguration(
            f"{file.path}{owner} is not trusted, and sets {', '.join(file.restricted)}. Read it, then run "
            "`quire trust` in its folder; or run this command in another folder."
        )
    import typer

    print_note("\n".join([f"{file.path} decides more than how a context is built:", *describe(file)]))
    is_accepted = typer.confirm("Do you trust it? A change of the file ends the trust.", err=True)
    remember(file, "trusted" if is_accepted else "refused")
    return is_accepted


def ignore_untrusted(file: ProjectFile) -> bool:
    """For commands that explain the settings: they show what applies without trust."""
    return False


def describe(file: ProjectFile) -> list[str]:
    """One line for each setting that needs trust, and for each program or host of the agent."""
    lines = [f"  {name} = {to_one_line(json.dumps(value))}" for name, value in file.restricted.items()]
    return lines + [f"  {sanitize(each)}" for each in _describe_agent(file.values)]


def read_decisions() -> dict[str, TrustDecision]:
    """The user's decisions by the path of the settings file. A damaged list trusts nothing."""
    try:
        return TypeAdapter(dict[str, TrustDecision]).validate_json(paths.get_trust_path().read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}


def remember(file: ProjectFile, decision: Literal["trusted", "refused"]) -> None:
    _write_decisions(read_decisions() | {str(file.path): TrustDecision(digest=file.digest, decision=decision)})


def forget(path: Path) -> bool:
    """Forgets the decision about a settings file; returns whether there was one."""
    decisions = read_decisions()
    if decisions.pop(str(path), None) is None:
        return False
    _write_decisions(decisions)
    return True


def _write_decisions(decisions: Mapping[str, TrustDecision]) -> None:
    document = {path: each.model_dump() for path, each in sorted(decisions.items())}
    paths.write_atomically(paths.get_trust_path(), json.dumps(document, indent=2) + "\n")


@cache
def _note_ignored(path: Path, names: tuple[str, ...]) -> None:
    count = pluralize(len(names), "setting")
    print_note(f"{path} is not trusted: {count} ignored ({', '.join(names)}). To use it, run `quire trust`.")


def _list_agent_files(values: Mapping[str, Any]) -> Iterator[Path]:
    """The files with the programs and hosts of the project's agent. Agents in the user's own folder are the user's."""
    agent = values.get("agent")
    if not isinstance(agent, str) or not (file := Path(agent)).is_file():
        return
    if not file.resolve().is_relative_to(paths.get_agents_folder().resolve()):
        yield file
        servers = _read_agent(file).get("servers_file")
        if isinstance(servers, str) and (file.parent / servers).is_file():
            yield file.parent / servers


def _describe_agent(values: Mapping[str, Any]) -> Iterator[str]:
    from quire.context.agent_loader import load_agent
    from quire.errors import QuireError

    for file in list(_list_agent_files(values))[:1]:
        try:
            agent = load_agent(file)
        except QuireError as error:
            yield f"the agent cannot be read: {to_one_line(str(error))}"
            return
        for server in agent.servers:
            target = server.url or " ".join([server.command or "", *server.args])
            yield f"the agent {'connects to' if server.url else 'runs'}: {to_one_line(target)}"
        for name, value in agent.setting_overrides.items():
            if name not in HARMLESS_SETTINGS:
                yield f"the agent sets: {name} = {to_one_line(json.dumps(value))}"


def _read_agent(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
