"""The page of benchmarks: made from the stored results, one of which can be replaced; and the rules of the soak."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import all as all_benchmarks  # noqa: E402
import results  # noqa: E402
from soak_samples import (  # noqa: E402
    ResourceSample,
    compare_minutes,
    compare_thirds,
    encode_sample,
    parse_record,
    summarize_minute,
)

OUTPUT = (
    "turns  cpu\n   10  1.5\n\nlog.append_ratio: 1.20 (goal <= 1.50) ok\nlog.read_ratio: 9.00 (goal <= 2.00) short\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "STORE", tmp_path / "results.json")
    monkeypatch.setattr(all_benchmarks, "PAGE", tmp_path / "benchmarks.md")
    return tmp_path


def test_a_new_result_replaces_only_its_own_part(folder: Path):
    first = results.make_result("log", "just bench log", OUTPUT, seconds=3, exit_code=1)
    all_benchmarks.write_report(first)
    all_benchmarks.write_report(replace(first, name="view", output="view.sqlite cost (ms): 2.00 (goal <= 3.00) ok"))
    all_benchmarks.write_report(replace(first, output=OUTPUT.replace("1.20", "1.30")))
    page = (folder / "benchmarks.md").read_text()
    assert [row for row in page.splitlines() if row.startswith("| [")] == [
        "| [log](#log) | 1 of 2 | `read_ratio` 9.00 (at most 2.00):  |",
        "| [view](#view) | 1 of 1 |  |",
    ]
    assert "Goals: `append_ratio` 1.30 (at most 1.50), `read_ratio` 9.00 (at most 2.00)." in page
    assert "turns  cpu" in page
    assert "goal <=" not in page


def test_only_a_run_without_goals_is_broken():
    missed = results.make_result("log", "just bench log", OUTPUT, seconds=3, exit_code=1)
    assert not missed.is_broken
    assert replace(missed, output="Traceback").is_broken


def test_the_page_is_that_of_the_stored_results(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "STORE", ROOT / "benchmarks" / "results.json")
    all_benchmarks.write_report(None)
    assert (folder / "benchmarks.md").read_text() == results.PAGE.read_text(), "run `just bench all --render`"


def test_every_missed_goal_has_a_reason():
    missed = [goal[0] for result in results.load_results().values() for goal in result.goals if not goal[3]]
    assert [measure for measure in missed if not results.explain_miss(measure)] == [], "say why in MISSED_REASONS"


def test_the_page_discloses_no_paths():
    assert not [word for word in results.PAGE.read_text().split() if word.startswith(("/tmp", "/home", "/root"))]


def test_every_benchmark_has_a_place():
    programs = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()]
    others = {"all", "corpus", "fit_ranker", "gateway_servers", "importer_mutants", "soak_upstream"}
    listed = {*all_benchmarks.NAMES, *all_benchmarks.BY_NAME_ONLY}
    assert {path.stem for path in programs} - others == listed


def make_sample(second: int, *, megabytes: float) -> ResourceSample:
    return ResourceSample(
        seconds=second, pss_megabytes=megabytes, rss_megabytes=megabytes, cpu_seconds=second / 10, file_handles=9,
        threads=4, database_connections=5, load_average=1.0,
    )  # fmt: skip


def test_a_leak_grows_from_third_to_third_and_a_full_cache_does_not():
    leak = [make_sample(second, megabytes=100 + second) for second in range(300)]
    cache = [make_sample(second, megabytes=min(200, 100 + 2 * second) + second % 7) for second in range(300)]
    assert compare_thirds(leak, lambda each: each.pss_megabytes) > 1.3
    assert compare_thirds(cache, lambda each: each.pss_megabytes) < 1.01


def test_the_last_ten_minutes_are_compared_with_the_second_ten():
    latencies = [*[0.9] * 10, *[0.1] * 10, *[0.5] * 5, *[0.13] * 10]
    minutes = [summarize_minute(minute, [each, each], turns=2, failures=0) for minute, each in enumerate(latencies)]
    assert compare_minutes(minutes, lambda each: each.p50_ms) == pytest.approx(1.3)


def test_samples_survive_their_file():
    sample, minute = (
        make_sample(5, megabytes=1.5),
        summarize_minute(0, [0.1, 0.2, 0.3], turns=4, failures=1, control=[0.01], fsync=[0.002]),
    )
    assert parse_record([encode_sample(sample), encode_sample(minute)]) == ([sample], [minute])
