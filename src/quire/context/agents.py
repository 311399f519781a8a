"""Agents from files: one TOML file, and beside it the folders `rules` and `references` with Markdown files.

A Markdown file is one item. Its front matter says how it enters; the agent's own `[rules.NAME]` and `[references.NAME]`
say so for this agent, or add an item. All paths count from the agent's file and stay inside the project. A key that
nobody knows is an error, because a misspelt one would otherwise do nothing.
"""

import json
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from quire.context.front_matter import front_matter
from quire.context.servers import first_fault, read_servers, servers_in
from quire.context.vault.paths import File, Root
from quire.errors import DocumentNotFound, InvalidConfiguration, PathRefused
from quire.model.agents import Agent, AgentMemory, Reference, Rule, ToolServer
from quire.settings import Settings

_KEYS = (
    "name", "description", "model", "instructions", "instructions_file", "settings", "rules", "rules_folder",
    "references", "references_folder", "servers", "servers_file", "memory",
)  # fmt: skip
_OVERRIDES = ("description", "include", "priority", "enabled")
_SOURCES = ("text", "path")

_Kind = TypeVar("_Kind", Rule, Reference)
Table = Mapping[str, object]


def load_agent(path: Path, *, project: Path | None = None) -> Agent:
    """The agent in a TOML file. `project` is the folder that its paths may not leave; else the file's own."""
    return _Loader(path, project or path.parent).agent()


class _Loader:
    """Reads one agent; every error names its file and the key."""

    def __init__(self, path: Path, project: Path) -> None:
        self._path = path
        home = path.resolve().parent
        if not home.is_relative_to(project.resolve()):
            raise InvalidConfiguration(f"The agent {path} lies outside its project {project}; move it inside.")
        self._root = Root(project, hidden=True)
        self._folder = home.relative_to(project.resolve()).as_posix()

    def agent(self) -> Agent:
        given = self._toml()
        self._refuse_unknown(given, _KEYS, "")
        fields: dict[str, object] = {key: given[key] for key in ("description", "model") if key in given}
        try:
            return Agent.model_validate(
                {
                    **fields,
                    "name": given.get("name", self._path.stem),
                    "instructions": self._instructions(given),
                    "settings": self._settings(self._table(given, "settings")),
                    "rules": self._items(given, Rule, "rules"),
                    "references": self._items(given, Reference, "references"),
                    "servers": self._servers(given),
                    "memory": self._memory(self._table(given, "memory")),
                }
            )
        except ValidationError as exc:
            raise self._error(first_fault(exc)) from exc

    def _toml(self) -> dict[str, object]:
        try:
            return tomllib.loads(self._path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError as exc:
            raise DocumentNotFound(f"There is no agent {self._path}; write one, or check the path.") from exc
        except (OSError, ValueError) as exc:
            raise self._error(f"the file cannot be read: {exc}") from exc

    def _instructions(self, given: Table) -> object:
        if "instructions_file" not in given:
            return given.get("instructions", "")
        if "instructions" in given:
            raise self._error("`instructions` and `instructions_file` are both there; keep one.")
        return self._read(given["instructions_file"], "instructions_file").text

    def _settings(self, given: Table) -> Table:
        self._refuse_unknown(given, tuple(Settings.model_fields), "settings.")
        try:
            Settings.model_validate(given)
        except ValidationError as exc:
            raise self._error(f"`settings`: {first_fault(exc)}") from exc
        return given

    def _memory(self, given: Table) -> AgentMemory:
        self._refuse_unknown(given, tuple(AgentMemory.model_fields), "memory.")
        try:
            return AgentMemory.model_validate(given)
        except ValidationError as exc:
            raise self._error(f"`memory`: {first_fault(exc)}") from exc

    def _servers(self, given: Table) -> tuple[ToolServer, ...]:
        servers = servers_in(self._table(given, "servers"), source=str(self._path))
        if "servers_file" in given:
            file = self._read(given["servers_file"], "servers_file")
            servers = (*servers, *read_servers(file.text, source=file.path))
        return servers

    def _items(self, given: Table, kind: type[_Kind], key: str) -> tuple[_Kind, ...]:
        """What lies in the folder, as the agent's own table changes it, and what that table adds."""
        found = self._in_folder(given, kind, key)
        for name, table in self._table(given, key).items():
            fields = self._table({name: table}, name, within=f"{key}.")
            self._refuse_unknown(fields, (*_OVERRIDES, *_SOURCES), f"{key}.{name}.")
            found[name] = self._item(kind, key, name, fields, found.get(name))
        return tuple(found[name] for name in sorted(found))

    def _item(self, kind: type[_Kind], key: str, name: str, fields: Table, known: _Kind | None) -> _Kind:
        sources = [source for source in _SOURCES if source in fields]
        if known is not None and sources:
            raise self._error(f"`{key}.{name}.{sources[0]}`: an item of this name lies in the folder; rename one.")
        if known is None and len(sources) != 1:
            raise self._error(f"`{key}.{name}` is in no file of the folder, and needs either `text` or `path`.")
        if "path" in fields:
            known = self._from_file(kind, self._read(fields["path"], f"{key}.{name}.path"))
        given: dict[str, Any] = {field: value for field, value in fields.items() if field != "path"}
        try:
            return kind.model_validate({**(known.model_dump() if known else {}), **given, "name": name})
        except ValidationError as exc:
            raise self._error(f"`{key}.{name}`: {first_fault(exc)}") from exc

    def _in_folder(self, given: Table, kind: type[_Kind], key: str) -> dict[str, _Kind]:
        folder = given.get(f"{key}_folder", key)
        items: dict[str, _Kind] = {}
        for path in self._markdown(folder, f"{key}_folder", required=f"{key}_folder" in given):
            item = self._from_file(kind, self._root.read(path))
            if item.name in items:
                raise self._error(f"two files in {folder!r} have the name {item.name!r}; rename one.")
            items[item.name] = item
        return items

    def _markdown(self, folder: object, key: str, *, required: bool) -> list[str]:
        if not isinstance(folder, str):
            raise self._error(f"`{key}` is the path of a folder, not {folder!r}.")
        try:
            found = self._root.files(f"{self._folder}/{folder}" if self._folder != "." else folder)
        except (DocumentNotFound, PathRefused) as exc:
            raise self._error(f"`{key}`: {exc}") from exc
        paths = [file.path for file in found if file.path.endswith(".md")]
        if required and not paths:
            raise self._error(f"`{key}`: there are no Markdown files in {folder!r}; check the path.")
        return paths

    def _from_file(self, kind: type[_Kind], file: File) -> _Kind:
        front, body = front_matter(file.text)
        if front.faults:
            raise self._error(f"{file.path}: {front.faults[0]}")
        fields: dict[str, Any] = {"path": file.path} if kind is Reference else {}
        return kind.model_validate(
            {
                **fields,
                "name": front.name or Path(file.path).stem,
                "text": body,
                "description": front.description or "",
                "include": front.include,
                "priority": front.priority,
                "enabled": front.enabled,
            }
        )

    def _read(self, path: object, key: str) -> File:
        if not isinstance(path, str):
            raise self._error(f"`{key}` is a path, not {path!r}.")
        try:
            return self._root.read(path, folder=self._folder)
        except (DocumentNotFound, PathRefused) as exc:
            raise self._error(f"`{key}`: {exc}") from exc

    def _table(self, given: Table, key: str, *, within: str = "") -> dict[str, object]:
        table = given.get(key, {})
        if not isinstance(table, dict):
            raise self._error(f"`{within}{key}` is a table, written [{within}{key}], not {table!r}.")
        return cast("dict[str, object]", table)

    def _refuse_unknown(self, given: Table, known: Collection[str], within: str) -> None:
        for key in given:
            if key not in known:
                near = get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"is `{within}{near[0]}` meant?" if near else f"known are {', '.join(known)}."
                raise self._error(f"there is no `{within}{key}`; {hint}")

    def _error(self, what: str) -> InvalidConfiguration:
        return InvalidConfiguration(f"The agent {self._path}: {what}")


def starter(name: str) -> str:
    """A commented file to begin an agent with."""
    # TOML's strings are written as JSON's are, but for one sign that TOML wants escaped.
    return _STARTER.replace("NAME", json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f"))


_STARTER = """\
# An agent of Quire. Rules and references are Markdown files in the folders `rules` and `references` beside this file;
# their front matter (name, description, include, priority, enabled) says how they enter a conversation:
#   always   with every new conversation
#   manual   when you add them
#   agent    when a message calls for them
name = NAME
description = ""

# The model to ask; without it, the one in the settings.
# model = "openai:gpt-4o"

instructions = \"\"\"
You are a helpful assistant.
\"\"\"
# Or the path of a text file:
# instructions_file = "instructions.md"

# Settings that hold for this agent alone.
[settings]
# strategy = "hybrid"
# context_threshold = 0.85

# A file in `rules`, by name, as this agent is to have it; or a rule of its own.
# [rules.brevity]
# text = "Answer in three sentences or fewer."
# include = "always"

# A document from elsewhere in the project.
# [references.readme]
# path = "README.md"
# description = "What the project is and how to start it"
# include = "agent"

# MCP servers, in the fields of the common `mcpServers` JSON; a path in `servers_file`, above the tables, names such a
# file. `include` is for all tools of a server, `tools` for one of them.
# [servers.files]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "."]
# env = { TOKEN = "${FILES_TOKEN:-none}" }
# include = "agent"
# tools = { read_file = { include = "always" }, delete_file = { enabled = false } }

# Memory: files of the project that are read into every conversation, and what the agent remembers.
[memory]
# enabled = true
# files = ["AGENTS.md"]
"""
