"""Fixtures for tests with real agents: Claude Code and Codex, each with an empty home, and a scripted provider.

`just agents` installs both and runs these tests at full size. Where an agent is not installed, its tests are skipped.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.real_agents import Claude, Codex, find_claude, find_codex
from infra.scripted_provider import ScriptedProvider, run_scripted_provider

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with run_scripted_provider() as provider:
        yield provider


@pytest.fixture
def make_claude(tmp_path: Path) -> Callable[..., Claude]:
    """Makes Claude Code with an empty home; every call gives another one."""
    if find_claude() is None:
        pytest.skip("CLAUDE CODE IS NOT INSTALLED: its tests do not run (`just install-agents`)")
    number = iter(range(100))
    return lambda base_url, **fields: Claude(tmp_path / f"claude{next(number)}", base_url, **fields)


@pytest.fixture
def make_codex(tmp_path: Path) -> Callable[..., Codex]:
    """Makes Codex with an empty home and the MCP server `harbour`; every call gives another one."""
    if find_codex() is None:
        pytest.skip("CODEX IS NOT INSTALLED: its tests do not run (`just install-agents`)")
    number = iter(range(100))
    return lambda base_url, **fields: Codex(tmp_path / f"codex{next(number)}", base_url, **fields)
