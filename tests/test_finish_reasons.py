"""One table says why a reply ended; the turn loop, summaries and the gateway all read it."""

import pytest

from quire.model.finish_reasons import FinishReason, is_truncated, normalize_finish_reason


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("completed", "stop"),
        ("STOP", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("max_output_tokens", "length"),
        ("incomplete", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("SAFETY", "content_filter"),
        ("unheard_of", None),
        (None, None),
    ],
)
def test_the_words_of_every_provider_are_translated(reason: str | None, expected: FinishReason | None):
    assert normalize_finish_reason(reason) == expected
    assert is_truncated(reason) == (expected == "length")
