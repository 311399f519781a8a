"""The counts in `quire.wire.tokens` are those of the tokenizer, for exactly the texts that a request counts."""

import pytest

from quire.context.builtin_tool_schemas import HISTORY_TOOLS
from quire.wire import tokens, wire_format_for
from quire.wire.tokens import COUNTED_TEXTS, digest_text, load_tokenizer


class RecordingCounter:
    """Counts with another counter, and records what it counted."""

    exact = True

    def __init__(self, vocabulary: str) -> None:
        self._counter, self.name = load_tokenizer(vocabulary), vocabulary
        self.counts: dict[str, int] = {}

    def count(self, text: str) -> int:
        tokens = self._counter.count(text)
        if text:
            self.counts[digest_text(text)] = tokens
        return tokens


@pytest.mark.parametrize("vocabulary", ["cl100k_base", "o200k_base"])
def test_the_table_has_the_tokenizers_counts(vocabulary: str, monkeypatch: pytest.MonkeyPatch):
    recorded = RecordingCounter(vocabulary)
    with monkeypatch.context() as without_table:
        without_table.setattr(tokens, "COUNTED_TEXTS", {})
        for provider in ("chat", "responses"):
            wire_format = wire_format_for(provider)
            for tool in HISTORY_TOOLS:
                wire_format.count_tools([wire_format.render_tool(tool.to_definition())], recorded)
    assert COUNTED_TEXTS[vocabulary] == recorded.counts
