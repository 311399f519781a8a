"""Backtests: stored conversations replayed under other strategies, context windows and models, without calling any."""

from quire.backtest.report import BacktestReport, VariantReport
from quire.backtest.runner import run_backtest
from quire.backtest.selection import (
    MAX_VARIANTS,
    BacktestVariant,
    ConversationSelection,
    combine_variants,
    select_conversations,
)
from quire.backtest.simulation import SimulatedStep

__all__ = [
    "MAX_VARIANTS",
    "BacktestReport",
    "BacktestVariant",
    "ConversationSelection",
    "SimulatedStep",
    "VariantReport",
    "combine_variants",
    "run_backtest",
    "select_conversations",
]
