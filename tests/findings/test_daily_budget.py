"""The budget of a day counts every call, imported ones too: it warns in the status line, and stops if it is set to."""

import time
from pathlib import Path

import pytest

from infra.agent_homes import ClaudeSession
from quire.cli.session_status import format_status_line
from quire.engine import open_engine
from quire.engine.file_import import ImportOptions
from quire.engine.source_scan import find_sources, import_sources
from quire.engine.spending import reserve_spend
from quire.errors import DailyBudgetReached
from quire.usage.insights import read_cost_of_today


async def test_a_spent_budget_warns_and_stops_if_it_is_set_to(tmp_path: Path):
    noon = time.time() // 86_400 * 86_400 + 43_200
    session = ClaudeSession(1, project="/home/dev/app", started_at=noon)
    session.work(40)
    session.save(tmp_path / ".claude" / "projects", age_days=0.001)
    async with open_engine(f"sqlite:///{tmp_path}/quire.db") as engine:
        await import_sources(engine, find_sources({"HOME": str(tmp_path)}), ImportOptions())
        spent = await read_cost_of_today(engine.store.usage)
        assert spent > 0.05
        lines = {
            share: await format_status_line(engine.store, {}, daily_budget=spent / share) for share in (0.5, 0.9, 1.1)
        }
        assert lines[0.5].endswith(f" · today ${spent:,.2f} of ${spent / 0.5:,.2f}")
        assert f"⚠ today ${spent:,.2f} of" in lines[0.9]
        assert f"over budget: today ${spent:,.2f} of" in lines[1.1]

        async def call(budget: float, *, stops: bool) -> object:
            changed = engine.with_changes(daily_budget=budget, daily_budget_stops=stops)
            return await reserve_spend(changed, "c", model="gpt-4o", input_tokens=10, output_tokens=10)

        assert await call(spent / 2, stops=False) is None
        assert await call(spent * 2, stops=True) is None
        with pytest.raises(DailyBudgetReached, match="until midnight UTC"):
            await call(spent / 2, stops=True)
