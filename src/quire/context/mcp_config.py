"""Parses MCP servers from the JSON that most programs share: `mcpServers`, or `servers` as in VS Code.

Configuration only: no server is started or contacted. Placeholders such as `${TOKEN}` are stored unexpanded, and
`expand_variables` fills them on use, so that no stored value has a secret. Errors name the server and the field.
"""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, cast

from pydantic import ValidationError

from quire.errors import InvalidConfiguration
from quire.model.agents import ToolOverride, ToolServer
from quire.model.base import JsonObject

_KNOWN_FIELDS = (
    "command", "args", "env", "cwd", "url", "headers", "type", "transport", "disabled", "enabled", "include", "tools",
)  # fmt: skip
_TRANSPORTS: dict[str, Literal["stdio", "http", "sse"]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_TYPO_CUTOFF = 0.8
# Matches from every `${` to its end, or to the next `${`, so that no text is read twice.
_PLACEHOLDER = re.compile(r"\$\{([^}$]*+(?:\$(?!\{)[^}$]*+)*)(\}|\$\{)?")


def parse_servers(text: str, *, source: str = "the server configuration") -> tuple[ToolServer, ...]:
    """The servers of a JSON file, in file order."""
    try:
        given: object = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidConfiguration(f"{source} is not valid JSON: {exc}") from exc
    fields = _require_object(given, source)
    for key in ("mcpServers", "servers"):
        if key in fields:
            return parse_server_table(_require_object(fields[key], f"`{key}` in {source}"), source=source)
    raise InvalidConfiguration(f'{source} has no `mcpServers`; write {{"mcpServers": {{"name": {{"command": "…"}}}}}}.')


def parse_server_table(named: Mapping[str, object], *, source: str) -> tuple[ToolServer, ...]:
    """The servers of a table from name to fields, from JSON or TOML."""
    return tuple(
        _parse_server(name, _require_object(fields, f"The server {name!r} in {source}"))
        for name, fields in named.items()
    )


def expand_variables(server: ToolServer, variables: Mapping[str, str]) -> ToolServer:
    """Replaces `${NAME}` with the variable; `${NAME:-default}` falls back to the default if it is not set."""

    def expand(text: str, field: str) -> str:
        def substitute(match: re.Match[str]) -> str:
            content, end = match[1], match[2]
            if end is None:
                return match[0]
            if end == "${":
                raise InvalidConfiguration(
                    f"The server {server.name!r}: `{field}` has a nested placeholder; write the default without one."
                )
            name, separator, given_default = content.removeprefix("env:").partition(":-")
            default = given_default if separator else None
            value = variables.get(name)
            if value or (value is not None and default is None):
                return value
            if default is None:
                raise InvalidConfiguration(
                    f"The server {server.name!r}: `{field}` needs the variable {name}, which is not set; set it."
                )
            return default

        return _PLACEHOLDER.sub(substitute, text)

    return server.model_copy(
        update={
            "command": None if server.command is None else expand(server.command, "command"),
            "args": tuple(expand(each, "args") for each in server.args),
            "env": {name: expand(value, f"env.{name}") for name, value in server.env.items()},
            "cwd": None if server.cwd is None else expand(server.cwd, "cwd"),
            "url": None if server.url is None else expand(server.url, "url"),
            "headers": {name: expand(value, f"headers.{name}") for name, value in server.headers.items()},
        }
    )


def _parse_server(name: str, fields: Mapping[str, object]) -> ToolServer:
    # The unknown fields of other programs are allowed, but one that is nearly a known field is a typo.
    extra = {key: value for key, value in fields.items() if key not in _KNOWN_FIELDS}
    for key in extra:
        if matches := get_close_matches(key, _KNOWN_FIELDS, n=1, cutoff=_TYPO_CUTOFF):
            raise InvalidConfiguration(f"The server {name!r} has no field `{key}`; did you mean `{matches[0]}`?")
    given: dict[str, Any] = {key: fields[key] for key in _KNOWN_FIELDS if fields.get(key) is not None}
    disabled, tools = given.pop("disabled", None), given.pop("tools", None)
    if disabled is not None:
        if not isinstance(disabled, bool):
            raise InvalidConfiguration(f"The server {name!r}: `disabled` must be true or false, not {disabled!r}.")
        given.setdefault("enabled", not disabled)
    alias, kind = given.pop("transport", None), given.pop("type", None)
    written = alias if kind is None else kind
    transport = "http" if "url" in given else "stdio"
    if written is not None:
        if not isinstance(written, str) or written not in _TRANSPORTS:
            raise InvalidConfiguration(f"The server {name!r}: `type` must be stdio, http or sse, not {written!r}.")
        transport = _TRANSPORTS[written]
        if (transport == "stdio") != ("url" not in given):
            needed = "a `command`" if transport == "stdio" else "a `url`"
            raise InvalidConfiguration(f"The server {name!r}: a server of type {written} needs {needed}.")
    overrides = {} if tools is None else _parse_overrides(name, tools)
    try:
        server = ToolServer.model_validate(
            {
                **given,
                "name": name,
                "transport": transport,
                "tools": overrides,
                "extra": cast(JsonObject, extra) or None,
            }
        )
    except ValidationError as exc:
        raise InvalidConfiguration(f"The server {name!r}: {describe_first_error(exc)}") from exc
    if (server.command is None) == (server.url is None):
        raise InvalidConfiguration(f"The server {name!r} needs either `command`, to start it, or `url`, to reach it.")
    return server


def _parse_overrides(server: str, tools: object) -> dict[str, ToolOverride]:
    known = tuple(ToolOverride.model_fields)
    overrides: dict[str, ToolOverride] = {}
    for name, fields in _require_object(tools, f"The server {server!r}: `tools`").items():
        for key in _require_object(fields, f"The server {server!r}: `tools.{name}`"):
            if key not in known:
                raise InvalidConfiguration(
                    f"The server {server!r}: `tools.{name}.{key}` is not one of {', '.join(known)}."
                )
        try:
            overrides[name] = ToolOverride.model_validate(fields)
        except ValidationError as exc:
            raise InvalidConfiguration(f"The server {server!r}: `tools.{name}`: {describe_first_error(exc)}") from exc
    return overrides


def _require_object(given: object, what: str) -> dict[str, object]:
    if not isinstance(given, dict):
        raise InvalidConfiguration(f"{what} must be an object of names and fields.")
    return cast("dict[str, object]", given)


def describe_first_error(error: ValidationError) -> str:
    """The first error with its field, without the value, which may be a secret."""
    first = error.errors()[0]
    field = ".".join(str(step) for step in first["loc"])
    return f"`{field}`: {first['msg']}" if field else first["msg"]
