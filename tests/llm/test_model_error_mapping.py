"""Classification of provider errors: only an overflow may compact. Each body names its source, if it has one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import errors
from quire.errors import (
    ModelContextOverflow,
    ModelError,
    ModelRateLimited,
)
from quire.llm.error_mapping import classify_error

BODIES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "error_bodies.json").read_text())


@pytest.mark.parametrize("case", BODIES, ids=lambda case: f"{case['provider']}: {case['what']}")
def test_recorded_bodies_are_classified(case: dict[str, Any]):
    error = classify_error(case["status"], case["body"], model="the-model")
    assert type(error) is getattr(errors, case["expect"])
    assert error.status == case["status"]
    assert str(error).startswith("the-model answered")
    if "tokens" in case:
        assert isinstance(error, ModelContextOverflow)
        assert (error.tokens, error.window) == (case["tokens"], case["window"])
    if "retry_after" in case:
        assert isinstance(error, ModelRateLimited)
        assert error.retry_after == pytest.approx(case["retry_after"])
    # The form of the body does not matter.
    text = json.dumps(case["body"]) if case["body"] is not None else ""
    forms: list[Any] = [text, text.encode()]
    # The OpenAI SDK passes on only the contents of `error`.
    if isinstance(case["body"], dict) and isinstance(case["body"].get("error"), dict):
        forms.append(case["body"]["error"])
    assert {type(classify_error(case["status"], form)) for form in forms} == {type(error)}


def test_every_class_and_provider_is_recorded():
    assert {case["expect"] for case in BODIES} == {
        "ModelContextOverflow", "ModelRateLimited", "ModelRefused", "ModelRequestRejected", "ModelUnavailable",
    }  # fmt: skip
    assert len(BODIES) >= 30
    assert len({case["provider"] for case in BODIES}) >= 11


def test_the_headers_wait_comes_before_the_bodys():
    body = {"error": {"message": "Please try again in 20ms"}}
    error = classify_error(429, body)
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after == pytest.approx(0.02)
    error = classify_error(429, body, retry_after=7.0)
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after == 7.0


@given(
    st.none() | st.integers(100, 599),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=40) | st.binary(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "code", "x"]), inner),
        max_leaves=8,
    ),
)
def test_any_body_is_sorted(status: int | None, body: Any):
    assert isinstance(classify_error(status, body), ModelError)
