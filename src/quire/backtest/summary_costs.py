"""Costs of the summaries that a simulation's compactions would have written by a model."""

from quire.backtest.scratch_log import ScratchLog
from quire.engine.context import EngineContext
from quire.model import Compaction, Entry, Usage


class SummaryCosts:
    """Counts compactions, and estimates what their summaries cost, until they are taken."""

    def __init__(self, engine: EngineContext, log: ScratchLog) -> None:
        self._engine, self._log = engine, log
        self._compactions, self._cost_usd = 0, 0.0
        self._covered_through, self._summary_tokens = 0, 0

    async def add(self, _conversation: str, entry: Entry) -> None:
        """Adds a compaction; called after each one."""
        self._compactions += 1
        body, summarizer = entry.body, self._engine.summarizer
        if not isinstance(body, Compaction) or body.covers is None or body.covers.last <= self._covered_through:
            return
        read_tokens = self._log.sum_tokens(self._covered_through + 1, body.covers.last) + self._summary_tokens
        self._covered_through = body.covers.last
        self._summary_tokens = self._engine.message_counter.token_counter.count(body.summary or "")
        if summarizer is not None and body.summary:
            usage = body.usage or Usage(input_tokens=read_tokens, output_tokens=self._summary_tokens)
            self._cost_usd += self._engine.config.estimate_cost(usage, summarizer.model.name)

    def take(self) -> tuple[int, float]:
        """Number and cost of the compactions since the last call."""
        taken = self._compactions, self._cost_usd
        self._compactions, self._cost_usd = 0, 0.0
        return taken
