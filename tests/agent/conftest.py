"""Fixtures: MCP servers as subprocesses, and the log file that they write."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mcp_fixtures import SERVERS_DIR, ServerLog

from quire.model.agents import ToolServer


@pytest.fixture
def server_log(tmp_path: Path) -> ServerLog:
    return ServerLog(tmp_path / "server_log")


@pytest.fixture
def make_tool_server(server_log: ServerLog) -> Callable[..., ToolServer]:
    def make_tool_server(script: str, *args: str, name: str = "s", **fields: object) -> ToolServer:
        env = {"SERVER_LOG": str(server_log.path), **fields.pop("env", {})}  # type: ignore[dict-item]
        return ToolServer.model_validate(
            {
                "name": name,
                "command": sys.executable,
                "args": (str(SERVERS_DIR / f"{script}.py"), *args),
                "env": env,
                **fields,
            }
        )

    return make_tool_server
