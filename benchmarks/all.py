"""Runs every benchmark and, with --report, writes docs/benchmarks.md: each figure with its command, machine and date.

A benchmark runs as its own process. One that fails is reported as such, the others still run, and its earlier result
stays. Results are stored one by one in benchmarks/results.json, so that a single benchmark can be updated:

    just bench all --report --only gateway
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from results import FOLDER, PAGE, BenchmarkResult, load_results, make_result, render_page, store_results

NAMES = (
    "log", "view", "turns", "compaction", "cli", "gateway", "search", "import_transcripts", "many_conversations",
    "live_events", "insights", "footprint", "hook_latency", "run_start", "page", "page_scale", "recall",
    "recall_languages", "memory",
)  # fmt: skip
BY_NAME_ONLY = (
    "scale",
    "large_tenant",
    "many_tenants",
    "adapters",
    "soak",
    "failover",
    "faults",
    "scan_home",
    "longmemeval",
    "corpus_search",
)
"""Take an hour, or need more programs or data than the others."""
MAX_SECONDS = 4 * 3_600


def run_benchmark(name: str, options: Sequence[str]) -> BenchmarkResult:
    started = time.monotonic()
    command = [sys.executable, str(FOLDER / f"{name}.py"), *options]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=MAX_SECONDS)
        output, exit_code = done.stdout, done.returncode
    except subprocess.TimeoutExpired:
        output, exit_code = "", 1
    shown = " ".join(("just bench", name, *options))
    return make_result(name, shown, output, seconds=time.monotonic() - started, exit_code=exit_code)


def read_result(name: str, options: Sequence[str], path: Path) -> BenchmarkResult:
    shown = " ".join(("just bench", name, *options))
    return make_result(name, shown, path.read_text("utf-8"), seconds=None, exit_code=0)


def write_report(result: BenchmarkResult | None) -> None:
    results = load_results()
    if result is not None:
        results[result.name] = result
        store_results(results)
    page = render_page(results[name] for name in (*NAMES, *BY_NAME_ONLY) if name in results)
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, about half an hour")
    parser.add_argument("--report", action="store_true", help=f"store the results and write docs/{PAGE.name}")
    parser.add_argument("--only", action="append", choices=(*NAMES, *BY_NAME_ONLY), help="repeatable; default: all")
    parser.add_argument("--output", type=Path, help="with one --only: what an earlier run printed, instead of a run")
    parser.add_argument("--render", action="store_true", help="write the page from stored results, and run nothing")
    parser.add_argument("options", nargs="*", help="options for each benchmark, after --")
    given = parser.parse_args()
    if given.render:
        return write_report(None)
    options = (*(("--quick",) if given.quick else ()), *given.options)
    has_failed = False
    for name in given.only or NAMES:
        result = read_result(name, options, given.output) if given.output else run_benchmark(name, options)
        unmet = sum(not met for *_, met in result.goals)
        state = "failed" if result.is_broken else f"{len(result.goals)} goals, {unmet} not met"
        print(f"{name}: {state}, {result.seconds or 0:,.0f} s", flush=True)
        has_failed |= result.is_broken
        if given.report and not result.is_broken:
            write_report(result)
    return sys.exit(1 if has_failed else 0)


if __name__ == "__main__":
    main()
