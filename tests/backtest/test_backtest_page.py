"""The program in docs/backtest.md runs and prints what the page says."""

from infra.docs_programs import DOCS, PYTHON, assert_printed, run_blocks


def test_the_program_prints_what_the_page_says(tmp_path):
    [block] = PYTHON.finditer((DOCS / "backtest.md").read_text())
    [printed] = run_blocks([block["code"]], tmp_path)
    assert_printed(printed, block["printed"])
