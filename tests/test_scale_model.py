"""docs/scale.md has the table that the model gives for the stored costs."""

import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import results  # noqa: E402
import scale_model  # noqa: E402


def load_costs() -> scale_model.Costs:
    return scale_model.read_costs({name: each.output for name, each in results.load_results().items()})


def test_the_table_of_the_docs_is_what_the_model_gives():
    table = scale_model.render_table(load_costs())
    assert table in (ROOT / "docs/scale.md").read_text(), f"write this table into docs/scale.md:\n{table}"


def test_more_users_need_no_less():
    needs = [scale_model.predict_needs(load_costs(), users) for users in scale_model.USER_COUNTS]
    for fewer, more in pairwise(needs):
        assert all(small <= large for small, large in zip(fewer, more, strict=True))


def test_only_what_grows_with_users_costs_more():
    costs = load_costs()
    chat, agents = scale_model.TRAFFIC
    [few, many] = [
        scale_model.predict_needs(costs, 10**6, (chat, agents._replace(share=share))) for share in (0.05, 0.1)
    ]
    assert many.requests_per_second > 1.5 * few.requests_per_second
    assert many.shards >= few.shards
