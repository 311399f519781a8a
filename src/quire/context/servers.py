"""MCP servers from the JSON that most programs share: `mcpServers`, or `servers` as VS Code has it.

Only configuration: nothing is started or reached. Placeholders such as `${TOKEN}` stay as they are until `expanded` is
handed the variables, so that a secret is in no value that is kept. An error names the server and the field.
"""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, cast

from pydantic import ValidationError

from quire.errors import InvalidConfiguration
from quire.model.agents import ToolOverride, ToolServer
from quire.model.value import Foreign

_KNOWN = (
    "command", "args", "env", "cwd", "url", "headers", "type", "transport", "disabled", "enabled", "include", "tools",
)  # fmt: skip
_KINDS: dict[str, Literal["stdio", "http", "sse"]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_LIKELY_SLIP = 0.8
_PLACEHOLDER = re.compile(r"\$\{(?:env:)?([^}]*?)(?::-([^}]*))?\}")


def read_servers(text: str, *, source: str = "the list of servers") -> tuple[ToolServer, ...]:
    """The servers in a JSON file, in the order in which they stand there."""
    try:
        given: object = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidConfiguration(f"{source} is not JSON: {exc}") from exc
    fields = _object(given, source)
    for key in ("mcpServers", "servers"):
        if key in fields:
            return servers_in(_object(fields[key], f"`{key}` in {source}"), source=source)
    raise InvalidConfiguration(f'{source} names no servers; write {{"mcpServers": {{"name": {{"command": "…"}}}}}}.')


def servers_in(named: Mapping[str, object], *, source: str) -> tuple[ToolServer, ...]:
    """The servers in a table from name to fields, as JSON or TOML has it."""
    return tuple(_server(name, _object(fields, f"The server {name!r} in {source}")) for name, fields in named.items())


def expanded(server: ToolServer, variables: Mapping[str, str]) -> ToolServer:
    """The server with the variables in place of `${NAME}`; `${NAME:-default}` has one for where it is not set."""

    def filled(text: str, field: str) -> str:
        return _PLACEHOLDER.sub(lambda match: _variable(match, variables, server.name, field), text)

    return server.model_copy(
        update={
            "command": None if server.command is None else filled(server.command, "command"),
            "args": tuple(filled(each, "args") for each in server.args),
            "env": {name: filled(value, f"env.{name}") for name, value in server.env.items()},
            "cwd": None if server.cwd is None else filled(server.cwd, "cwd"),
            "url": None if server.url is None else filled(server.url, "url"),
            "headers": {name: filled(value, f"headers.{name}") for name, value in server.headers.items()},
        }
    )


def _variable(match: re.Match[str], variables: Mapping[str, str], server: str, field: str) -> str:
    name, default = match[1], match[2]
    if default is not None and "${" in default:
        raise InvalidConfiguration(
            f"The server {server!r}: `{field}` has a placeholder within a placeholder; write the default out."
        )
    value = variables.get(name)
    if value or (value is not None and default is None):
        return value
    if default is None:
        raise InvalidConfiguration(f"The server {server!r}: `{field}` needs the variable {name}, which is not set.")
    return default


def _server(name: str, fields: Mapping[str, object]) -> ToolServer:
    _refuse_slips(name, fields)
    given: dict[str, Any] = {key: fields[key] for key in _KNOWN if fields.get(key) is not None}
    disabled, tools = given.pop("disabled", None), given.pop("tools", None)
    if disabled is not None:
        if not isinstance(disabled, bool):
            raise InvalidConfiguration(f"The server {name!r}: `disabled` is true or false, not {disabled!r}.")
        given.setdefault("enabled", not disabled)
    extra = {key: value for key, value in fields.items() if key not in _KNOWN}
    try:
        server = ToolServer.model_validate(
            {
                **_without_kind(given),
                "name": name,
                "transport": _transport(name, given),
                "tools": {} if tools is None else _overrides(name, tools),
                "extra": cast(Foreign, extra) or None,
            }
        )
    except ValidationError as exc:
        raise InvalidConfiguration(f"The server {name!r}: {first_fault(exc)}") from exc
    if (server.command is None) == (server.url is None):
        raise InvalidConfiguration(f"The server {name!r} needs either `command`, to start it, or `url`, to reach it.")
    return server


def _without_kind(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in ("type", "transport")}


def _transport(name: str, given: Mapping[str, Any]) -> Literal["stdio", "http", "sse"]:
    said = given.get("type", given.get("transport"))
    if said is None:
        return "http" if "url" in given else "stdio"
    if not isinstance(said, str) or said not in _KINDS:
        raise InvalidConfiguration(f"The server {name!r}: `type` is stdio, http or sse, not {said!r}.")
    if (_KINDS[said] == "stdio") != ("url" not in given):
        needed = "a `command`" if _KINDS[said] == "stdio" else "a `url`"
        raise InvalidConfiguration(f"The server {name!r}: a server of type {said} needs {needed}.")
    return _KINDS[said]


def _overrides(server: str, tools: object) -> dict[str, ToolOverride]:
    known = tuple(ToolOverride.model_fields)
    overrides: dict[str, ToolOverride] = {}
    for name, fields in _object(tools, f"The server {server!r}: `tools`").items():
        for key in _object(fields, f"The server {server!r}: `tools.{name}`"):
            if key not in known:
                raise InvalidConfiguration(
                    f"The server {server!r}: `tools.{name}.{key}` is none of {', '.join(known)}."
                )
        try:
            overrides[name] = ToolOverride.model_validate(fields)
        except ValidationError as exc:
            raise InvalidConfiguration(f"The server {server!r}: `tools.{name}`: {first_fault(exc)}") from exc
    return overrides


def _refuse_slips(name: str, fields: Mapping[str, object]) -> None:
    """Other programs keep fields of their own here; one that is nearly a known one is a slip of the pen."""
    for key in fields:
        if key not in _KNOWN and (near := get_close_matches(key, _KNOWN, n=1, cutoff=_LIKELY_SLIP)):
            raise InvalidConfiguration(f"The server {name!r} has no field `{key}`; is `{near[0]}` meant?")


def _object(given: object, what: str) -> dict[str, object]:
    if not isinstance(given, dict):
        raise InvalidConfiguration(f"{what} is no table of names and fields.")
    return cast("dict[str, object]", given)


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong, with its field. Values are left out: one may be a secret."""
    fault = error.errors()[0]
    field = ".".join(str(step) for step in fault["loc"])
    return f"`{field}`: {fault['msg']}" if field else fault["msg"]
