"""MCP server configuration in the JSON of other programs, with Quire's own fields."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.mcp_config import expand_variables, parse_servers
from quire.errors import InvalidConfiguration, QuireError
from quire.model.agents import ToolOverride, ToolServer


def parse(**servers: Any) -> tuple[ToolServer, ...]:
    return parse_servers(json.dumps({"mcpServers": servers}), source="mcp.json")


def test_a_file_as_claude_desktop_has_it():
    text = """
    {"mcpServers": {
      "filesystem": {"command": "npx", "args": ["-y", "server-filesystem", "/data"], "env": {"LOG": "1"}},
      "memory": {"command": "docker", "args": ["run", "-i", "mcp/memory"]}
    }}
    """
    files, memory = parse_servers(text)
    assert (files.name, files.command, files.args) == ("filesystem", "npx", ("-y", "server-filesystem", "/data"))
    assert files.env == {"LOG": "1"}
    assert (memory.name, memory.transport, memory.enabled, memory.include) == ("memory", "stdio", True, None)


def test_a_file_as_cursor_has_it():
    (server,) = parse(api={"url": "https://x.test/mcp", "headers": {"Authorization": "Bearer ${env:API_KEY}"}})
    assert (server.transport, server.url) == ("http", "https://x.test/mcp")
    assert expand_variables(server, {"API_KEY": "k"}).headers == {"Authorization": "Bearer k"}


def test_a_file_as_vs_code_has_it():
    text = json.dumps(
        {
            "inputs": [{"id": "key", "type": "promptString", "password": True}],
            "servers": {
                "a": {"type": "http", "url": "https://x.test/mcp", "headers": {"X": "${input:key}"}},
                "b": {"type": "sse", "url": "https://x.test/sse"},
                "c": {"type": "stdio", "command": "c", "cwd": "${workspaceFolder}", "envFile": ".env"},
            },
        }
    )
    a, b, c = parse_servers(text)
    assert [server.transport for server in (a, b, c)] == ["http", "sse", "stdio"]
    assert c.extra == {"envFile": ".env"}
    assert expand_variables(a, {"input:key": "k"}).headers == {"X": "k"}
    assert expand_variables(c, {"workspaceFolder": "/w"}).cwd == "/w"


def test_fields_of_other_programs_are_preserved_and_not_read():
    (server,) = parse(a={"command": "c", "autoApprove": ["x"], "timeout": 60, "alwaysAllow": [], "disabledTools": []})
    assert server.extra == {"autoApprove": ["x"], "timeout": 60, "alwaysAllow": [], "disabledTools": []}


def test_what_quire_adds():
    (server,) = parse(
        a={
            "command": "c",
            "disabled": True,
            "include": "agent",
            "tools": {"read": {"include": "always"}, "drop": {"enabled": False}},
        }
    )
    assert (server.enabled, server.include) == (False, "agent")
    assert server.tools == {"read": ToolOverride(include="always"), "drop": ToolOverride(enabled=False)}
    assert parse(a={"command": "c", "enabled": False})[0].enabled is False


@pytest.mark.parametrize("kind", ["http", "streamable-http", "streamableHttp", "streamable_http"])
def test_the_names_that_http_goes_by(kind: str):
    assert parse(a={"url": "https://x.test", "type": kind})[0].transport == "http"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must be an object"),
        ('{"servers": []}', "`servers`"),
        ("{}", "mcpServers"),
        ('{"mcpServers": {"a": "npx"}}', "'a'"),
    ],
)
def test_a_file_that_holds_no_servers_is_refused(text: str, says: str):
    with pytest.raises(InvalidConfiguration, match=says):
        parse_servers(text, source="mcp.json")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "`command`"),
        ({"command": "c", "url": "u"}, "`command`"),
        ({"command": 3}, "`command`"),
        ({"command": "c", "args": "-y"}, "`args`"),
        ({"command": "c", "args": [1]}, "`args.0`"),
        ({"command": "c", "env": {"PORT": 3000}}, "`env.PORT`"),
        ({"url": "u", "headers": ["x"]}, "`headers`"),
        ({"command": "c", "type": "carrier pigeon"}, "stdio, http or sse"),
        ({"command": "c", "type": "http"}, "`url`"),
        ({"url": "u", "type": "stdio"}, "`command`"),
        ({"command": "c", "disabled": "no"}, "`disabled`"),
        ({"command": "c", "include": "sometimes"}, "`include`"),
        ({"command": "c", "inculde": "agent"}, "did you mean `include`"),
        ({"command": "c", "arg": []}, "did you mean `args`"),
        ({"command": "c", "tools": ["read"]}, "`tools`"),
        ({"command": "c", "tools": {"read": "always"}}, "`tools.read`"),
        ({"command": "c", "tools": {"read": {"mode": "always"}}}, "`tools.read.mode`"),
        ({"command": "c", "tools": {"read": {"include": "now"}}}, "`tools.read`.*`include`"),
    ],
)
def test_an_error_names_the_server_and_the_field(fields: dict[str, Any], says: str):
    with pytest.raises(InvalidConfiguration, match=f"'shop'.*{says}"):
        parse(shop=fields)


def test_an_error_does_not_repeat_what_may_be_a_secret():
    with pytest.raises(InvalidConfiguration) as caught:
        parse(a={"command": "c", "env": {"TOKEN": ["hush"]}})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${A}", "1"),
        ("x-${A}-${B:-2}-${env:A}", "x-1-2-1"),
        ("${B:-}", ""),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("${A:-unused}", "1"),
        ("${B:-a:-b}", "a:-b"),
        ("$A {A} $", "$A {A} $"),
        ("${A", "${A"),
        ("${NESTED}", "${A}"),
    ],
)
def test_placeholders_are_filled_from_what_is_handed_in(text: str, filled: str):
    server = ToolServer(name="s", command=text, args=(text,), env={"E": text}, cwd=text, url=text, headers={"H": text})
    done = expand_variables(server, {"A": "1", "EMPTY": "", "NESTED": "${A}"})
    assert (done.command, done.args, done.env, done.cwd, done.url, done.headers) == (
        filled, (filled,), {"E": filled}, filled, filled, {"H": filled},
    )  # fmt: skip


def test_reading_fills_in_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_SECRET", "hush")
    (server,) = parse(a={"command": "c", "env": {"KEY": "${A_SECRET}"}})
    assert server.env == {"KEY": "${A_SECRET}"}
    with pytest.raises(InvalidConfiguration, match=r"'a'.*`env.KEY`.*A_SECRET"):
        expand_variables(server, {})


def test_a_placeholder_within_a_placeholder_is_refused():
    with pytest.raises(InvalidConfiguration, match=r"'s'.*`command`"):
        expand_variables(ToolServer(name="s", command="${A:-${B}}"), {"A": "1", "B": "2"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["command", "args", "env", "url", "headers", "type", "disabled", "include", "tools", "x"]), JSON
)


@given(st.dictionaries(st.text(max_size=5), FIELDS, max_size=2))
def test_any_json_is_read_or_refused_in_words(servers: dict[str, Any]):
    try:
        parsed = parse(**servers)
    except QuireError:
        return
    assert [server.name for server in parsed] == list(servers)
