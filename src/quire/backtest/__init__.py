"""Backtests: stored conversations replayed under other strategies, context windows and models, without calling any."""

from quire.backtest.conversation_sample import ConversationSelection, select_conversations
from quire.backtest.report import BacktestReport, VariantReport
from quire.backtest.runner import run_backtest
from quire.backtest.simulation import SimulatedStep
from quire.backtest.variants import MAX_VARIANTS, BacktestVariant, combine_variants

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
