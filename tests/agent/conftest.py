"""MCP servers as programs, and the notes that they leave."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support_mcp import HERE, Notes

from quire.model.agents import ToolServer


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def program(notes: Notes) -> Callable[..., ToolServer]:
    def program(script: str, *args: str, name: str = "s", **fields: object) -> ToolServer:
        env = {"NOTES": str(notes.path), **fields.pop("env", {})}  # type: ignore[dict-item]
        return ToolServer.model_validate(
            {
                "name": name,
                "command": sys.executable,
                "args": (str(HERE / f"{script}.py"), *args),
                "env": env,
                **fields,
            }
        )

    return program
