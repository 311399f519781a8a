"""Loads agents from files: a TOML file, and the folders `rules` and `references` with Markdown files next to it.

A Markdown file is one item. Its front matter sets how it is included; the tables `[rules.NAME]` and `[references.NAME]`
of the TOML file override that for this agent, or add an item. Paths are relative to the agent's file and must stay
inside the project. Unknown keys are errors, because a misspelled key would otherwise be ignored silently.
"""

import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from quire.context.front_matter import parse_front_matter
from quire.context.mcp_config import describe_first_error, parse_server_table, parse_servers
from quire.context.vault.paths import Root, TextFile
from quire.errors import DocumentNotFound, InvalidConfiguration, PathRefused
from quire.model.agents import Agent, AgentMemory, Reference, Rule
from quire.settings import Settings

_KNOWN_KEYS = (
    "name", "description", "model", "instructions", "instructions_file", "settings", "rules", "rules_folder",
    "references", "references_folder", "servers", "servers_file", "memory",
)  # fmt: skip
_OVERRIDE_KEYS = ("description", "include", "priority", "enabled")
_SOURCE_KEYS = ("text", "path")

_ItemType = TypeVar("_ItemType", Rule, Reference)
_Model = TypeVar("_Model", Settings, AgentMemory)
TomlTable = Mapping[str, object]


def load_agent(path: Path, *, project: Path | None = None) -> Agent:
    """Loads an agent from a TOML file. Its paths must stay inside `project`, by default the file's folder."""
    return _AgentLoader(path, project or path.parent).load()


class _AgentLoader:
    """Loads one agent. Every error names its file and the key."""

    def __init__(self, path: Path, project: Path) -> None:
        self._path = path
        home = path.resolve().parent
        if not home.is_relative_to(project.resolve()):
            raise InvalidConfiguration(f"The agent {path} is outside its project {project}; move it inside.")
        self._root = Root(project, allow_hidden=True)
        self._folder = home.relative_to(project.resolve()).as_posix()

    def load(self) -> Agent:
        try:
            given: dict[str, object] = tomllib.loads(self._path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError as exc:
            raise DocumentNotFound(f"There is no agent {self._path}; create it, or check the path.") from exc
        except (OSError, ValueError) as exc:
            raise self._error(f"the file cannot be read: {exc}") from exc
        self._reject_unknown_keys(given, _KNOWN_KEYS, "")
        instructions = given.get("instructions", "")
        if "instructions_file" in given:
            if "instructions" in given:
                raise self._error("`instructions` and `instructions_file` are both set; remove one.")
            instructions = self._read_file(given["instructions_file"], "instructions_file").text
        self._validate_table(given, "settings", Settings)
        servers = parse_server_table(self._get_table(given, "servers"), source=str(self._path))
        if "servers_file" in given:
            file = self._read_file(given["servers_file"], "servers_file")
            servers = (*servers, *parse_servers(file.text, source=file.path))
        fields: dict[str, object] = {key: given[key] for key in ("description", "model") if key in given}
        try:
            return Agent.model_validate(
                {
                    **fields,
                    "name": given.get("name", self._path.stem),
                    "instructions": instructions,
                    "settings": self._get_table(given, "settings"),
                    "rules": self._load_items(given, Rule, "rules"),
                    "references": self._load_items(given, Reference, "references"),
                    "servers": servers,
                    "memory": self._validate_table(given, "memory", AgentMemory),
                }
            )
        except ValidationError as exc:
            raise self._error(describe_first_error(exc)) from exc

    def _validate_table(self, given: TomlTable, key: str, model: type[_Model]) -> _Model:
        table = self._get_table(given, key)
        self._reject_unknown_keys(table, tuple(model.model_fields), f"{key}.")
        try:
            return model.model_validate(table)
        except ValidationError as exc:
            raise self._error(f"`{key}`: {describe_first_error(exc)}") from exc

    def _load_items(self, given: TomlTable, kind: type[_ItemType], key: str) -> tuple[_ItemType, ...]:
        """Items of the folder with the overrides of the agent's table, and the items that the table adds."""
        items = self._load_folder(given, kind, key)
        for name, table in self._get_table(given, key).items():
            fields = self._get_table({name: table}, name, within=f"{key}.")
            self._reject_unknown_keys(fields, (*_OVERRIDE_KEYS, *_SOURCE_KEYS), f"{key}.{name}.")
            known = items.get(name)
            sources = [source for source in _SOURCE_KEYS if source in fields]
            if known is not None and sources:
                raise self._error(f"`{key}.{name}.{sources[0]}`: the folder has an item of this name; rename one.")
            if known is None and len(sources) != 1:
                raise self._error(f"`{key}.{name}` is not in the folder, so it needs either `text` or `path`.")
            if "path" in fields:
                known = self._parse_item(kind, self._read_file(fields["path"], f"{key}.{name}.path"))
            overrides = {field: value for field, value in fields.items() if field != "path"}
            try:
                items[name] = kind.model_validate({**(known.model_dump() if known else {}), **overrides, "name": name})
            except ValidationError as exc:
                raise self._error(f"`{key}.{name}`: {describe_first_error(exc)}") from exc
        return tuple(items[name] for name in sorted(items))

    def _load_folder(self, given: TomlTable, kind: type[_ItemType], key: str) -> dict[str, _ItemType]:
        folder = given.get(f"{key}_folder", key)
        if not isinstance(folder, str):
            raise self._error(f"`{key}_folder` must be the path of a folder, not {folder!r}.")
        try:
            files = self._root.list_files(f"{self._folder}/{folder}" if self._folder != "." else folder)
        except (DocumentNotFound, PathRefused) as exc:
            raise self._error(f"`{key}_folder`: {exc}") from exc
        paths = [file.path for file in files if file.path.endswith(".md")]
        if f"{key}_folder" in given and not paths:
            raise self._error(f"`{key}_folder`: there are no Markdown files in {folder!r}; check the path.")
        items: dict[str, _ItemType] = {}
        for path in paths:
            item = self._parse_item(kind, self._root.read(path))
            if item.name in items:
                raise self._error(f"two files in {folder!r} have the name {item.name!r}; rename one.")
            items[item.name] = item
        return items

    def _parse_item(self, kind: type[_ItemType], file: TextFile) -> _ItemType:
        front, body = parse_front_matter(file.text)
        if front.errors:
            raise self._error(f"{file.path}: {front.errors[0]}")
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

    def _read_file(self, path: object, key: str) -> TextFile:
        if not isinstance(path, str):
            raise self._error(f"`{key}` must be a path, not {path!r}.")
        try:
            return self._root.read(path, folder=self._folder)
        except (DocumentNotFound, PathRefused) as exc:
            raise self._error(f"`{key}`: {exc}") from exc

    def _get_table(self, given: TomlTable, key: str, *, within: str = "") -> dict[str, object]:
        table = given.get(key, {})
        if not isinstance(table, dict):
            raise self._error(f"`{within}{key}` must be a table, written [{within}{key}], not {table!r}.")
        return cast("dict[str, object]", table)

    def _reject_unknown_keys(self, given: TomlTable, known: Collection[str], within: str) -> None:
        for key in given:
            if key not in known:
                matches = get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"did you mean `{within}{matches[0]}`?" if matches else f"the known keys are {', '.join(known)}."
                raise self._error(f"unknown key `{within}{key}`; {hint}")

    def _error(self, problem: str) -> InvalidConfiguration:
        return InvalidConfiguration(f"The agent {self._path}: {problem}")
