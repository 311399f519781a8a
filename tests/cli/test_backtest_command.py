"""`quire backtest`: table, plot and JSON of stored conversations, and its errors."""

import pytest
from cli_fixtures import TIDES_ID, TURNS, CliHome, invoke_cli, run_json, validate_document
from rich.cells import cell_len

from quire.lab.command import MAX_COLUMNS, MIN_COLUMNS, draw_plot
from quire.lab.schemas import BacktestSchema, SeriesPointSchema


def test_the_table_has_a_row_for_each_strategy_and_a_plot(home: CliHome):
    result = invoke_cli("backtest", TIDES_ID)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"1 conversation of {len(TURNS)} turns and {len(TURNS)} requests."
    rows = [line.split()[0] for line in lines[3:6]]
    assert rows == ["discard", "summarize", "hybrid"]
    assert "Tokens sent by request" in result.stdout
    assert result.stdout.count("┤") == 6, "two labels on the scale of each chart"
    assert max(map(len, lines)) <= 100


def test_json_has_all_fields(home: CliHome):
    document = run_json("backtest", TIDES_ID, "--strategy", "hybrid", "--window", "1200", "--window", "4000")
    validate_document(document, BacktestSchema)
    assert [each["name"] for each in document["variants"]] == ["hybrid 1,200", "hybrid 4,000"]
    for variant in document["variants"]:
        tokens = [point["tokens"] for point in variant["by_request"]]
        assert len(tokens) == len(TURNS)
        assert variant["tokens"] == {"value": sum(tokens), "plus_minus": None}


def test_a_sample_has_confidence_intervals(home: CliHome):
    everything = run_json("backtest", "--strategy", "discard")
    assert not everything["is_sample"]
    document = run_json("backtest", "--strategy", "discard", "--sample", "1", "--seed", "1")
    assert document["is_sample"]
    assert document["conversations"] + document["skipped"] == 1


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (("unknown",), 3, "unknown"),
        (("--project", "none"), 3, "no conversation of the project 'none'"),
        (("--strategy", "forget"), 1, "forget"),
        (("--window", "10"), 2, "500"),
    ],
)
def test_errors_say_what_to_do(home: CliHome, words: tuple[str, ...], exit_code: int, message: str):
    result = invoke_cli("backtest", *words)
    assert result.exit_code == exit_code, result.output
    assert message in result.output


def make_points(count: int) -> list[SeriesPointSchema]:
    return [
        SeriesPointSchema(
            position=number + 1, tokens=100.0 * (number + 1), cached_tokens=50.0 * number, conversations=1
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("width", [30, 60, 100, 250])
@pytest.mark.parametrize("count", [1, 7, 90, 400])
def test_the_plot_fits_its_width(width: int, count: int):
    lines = [line.plain for line in draw_plot([("hybrid", make_points(count))], unit="turn", width=width)]
    bars = lines[2:-1]
    assert max(map(cell_len, bars)) <= min(max(width, MIN_COLUMNS + 10), MAX_COLUMNS + 10)
    assert lines[-1].endswith(f"turn {count:,}")
    assert bars[0].startswith(f"{100 * count:,} ┤")
    assert "█" in bars[-1] or "░" in bars[-1]


def test_the_highest_bar_reaches_the_top_and_others_by_their_size():
    points = [
        SeriesPointSchema(position=1, tokens=600, cached_tokens=0, conversations=1),
        SeriesPointSchema(position=2, tokens=300, cached_tokens=300, conversations=1),
    ]
    columns = [line.plain[5:] for line in draw_plot([("x", points)], unit="turn", width=60)[2:-1]]
    assert [line[0] for line in columns] == ["█"] * 6
    assert [line[8:9].strip() for line in columns] == ["", "", "", "░", "░", "░"]
