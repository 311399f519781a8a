"""Costs equal those of ccusage, the tool that people compare with, on the same files."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.agent_homes import PLANTED_KINDS, plant, write_clean_session, write_codex_session
from infra.sizes import IS_FULL_SIZE
from quire.engine import open_engine
from quire.engine.file_import import ImportOptions
from quire.engine.source_scan import find_sources, import_sources, read_findings
from quire.usage.insights import count_usage

CCUSAGE = shutil.which("ccusage")
MAX_DIFFERENCE = 0.01
SESSIONS = 200 if IS_FULL_SIZE else 12


@pytest.mark.skipif(CCUSAGE is None, reason="ccusage is not installed: npm install --global ccusage")
async def test_costs_equal_those_of_ccusage(tmp_path: Path):
    projects, sessions = tmp_path / ".claude" / "projects", tmp_path / ".codex" / "sessions"
    for number in range(SESSIONS):
        write_clean_session(projects, number)
        write_codex_session(sessions, number, age_days=1 + number % 20)
    for kind in PLANTED_KINDS:
        if kind != "expensive_day":
            plant(projects, kind, 1)
    env = {"HOME": str(tmp_path)}
    async with open_engine(f"sqlite:///{tmp_path}/quire.db") as engine:
        await import_sources(engine, find_sources(env), ImportOptions())
        await count_usage(engine.store.usage)
        report = await read_findings(engine.store)
    ours = {each.name: each.counts.cost_nanos / 1e9 for each in report.agents}

    def ask_ccusage(agent: str) -> dict[str, Any]:
        command = [str(CCUSAGE), agent, "daily", "--offline", "--json", "--timezone", "UTC"]
        done = subprocess.run(command, env={**env, "PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
        return json.loads(done.stdout)["totals"]

    claude = await asyncio.to_thread(ask_ccusage, "claude")
    codex = await asyncio.to_thread(ask_ccusage, "codex")
    assert ours["claude-code"] == pytest.approx(claude["totalCost"], rel=MAX_DIFFERENCE)
    assert ours["codex"] == pytest.approx(codex["costUSD"], rel=MAX_DIFFERENCE)
