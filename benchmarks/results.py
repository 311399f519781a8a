"""Stored results of the benchmarks, and the page that shows them: docs/benchmarks.md.

Each result has its own command, machine and date, so that one benchmark can run again without the others.
"""

import ast
import json
import os
import platform
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infra.postgres import find_binaries

FOLDER = Path(__file__).parent
STORE = FOLDER / "results.json"
DOCS = FOLDER.parent / "docs"
PAGE = DOCS / "benchmarks.md"
PACKAGES = (
    "langchain", "langchain-openai", "sqlalchemy", "psycopg", "fastapi", "uvicorn", "aiohttp", "numpy", "wordllama",
)  # fmt: skip
PICTURES = {"soak": "picture/soak.svg", "memory": "picture/memory.svg"}
MISSED_REASONS = {
    r"cli\.\w+_over_python": "importing SQLAlchemy, Pydantic and Typer",
    r"corpus_search\.not_\w+": "ten questions share no word with their answer, and of the others some share more with "
    "other messages",
    r"corpus_search\.cpu_seconds": "importing SQLAlchemy, Pydantic, NumPy and Quire, on a machine that others use, too",
    r"compaction\.bookkeeping_growth.*": "the recall index is read and encoded again",
    r"gateway\.cpu_of_gemini_to_chat_to_chat": "a reply is parsed, translated and rendered again",
    r"gateway\.cpu_new_messages_only_to_list": "recall, with its ranking and a decision for each message that is left "
    "out, in place of a list that the client repeats",
    r"gateway\.open_loop_failed_turns": "turns that k6 could not start while others waited for the database",
    r"view\.postgres_vs_bare_read": "on a quiet machine a round trip takes less time than SQLAlchemy's switch to its "
    "greenlet and back",
    r"gateway\.cpu_to_\w+": "the profile is flat: recording, matching and preparing, HTTP, and the event loop take "
    "about a fifth each, and no function 5 %",
    r"gateway\.cpu_long_list": "the whole list is parsed and matched, which the bare proxy only forwards",
    r"gateway\.open_loop_added_p99_to_litellm": "a turn is stored before it is answered, and LiteLLM stores nothing",
    r"import\.\w+_seconds_per_bare_second": "a transcript is parsed, digested and matched, not only inserted",
    r"insights\.\w+ command \(ms\)": "the start of the command, as of every command; the API answers within the goal",
    r"scale\.CPU_us_of_indexing_one_of_1027200_error": "measured last, when the process had the words in its "
    "caches, and so less than predicted",
    r"soak\.p\d\d_growth": "the machine's other work: a control without Quire grew by 1.17 between the same minutes",
    r"soak\.database_connection_growth": "19 connections after twenty minutes, 21 after forty and at the end",
    r"turns\.evaluated_to_SummarizationMiddleware": "compared over the steps until the middleware ended with an error, "
    "before most of the compactions",
    r"log\.append_vs_bare_sqlite_.*": "checks, digests and the path of a message, and a thread for each write",
    r"longmemeval\.recall\.1000\.missed": "a thousand tokens hold few long replies; of two thousand 98 % are found",
    r"recall\.vault_update_over_build_sqlite": "beside other work; 0.10 alone",
    r"recall\.prepare_over_scan_.*": "the ranking of candidates in Python, against a scan by the database",
}
"""Why a goal is missed, by a pattern of its name. A missed goal without a reason is a failing test."""
_GOAL = re.compile(
    r"^(?P<measure>\w+\.[^:\n]+): (?P<value>\S+) \(goal <= (?P<goal>\S+)\) (?P<met>ok|short)$", re.MULTILINE
)


@dataclass(frozen=True)
class BenchmarkResult:
    """What one run of a benchmark printed, and where it ran."""

    name: str
    command: str
    date: str
    seconds: float | None
    """None if the output was read from a file."""
    load_average: float
    """Of the machine at the end, with the benchmark's own load."""
    machine: str
    versions: str
    exit_code: int
    output: str

    @property
    def goals(self) -> list[tuple[str, str, str, bool]]:
        """Measure, value, goal, and whether it was met."""
        found = _GOAL.finditer(self.output)
        return [(each["measure"], each["value"], each["goal"], each["met"] == "ok") for each in found]

    @property
    def environment(self) -> str:
        return f"{self.machine}; {self.versions}"

    @property
    def is_broken(self) -> bool:
        """Whether it ended with an error; a goal that was not met is none."""
        return self.exit_code != 0 and not self.goals


def make_result(name: str, command: str, output: str, *, seconds: float | None, exit_code: int) -> BenchmarkResult:
    return BenchmarkResult(
        name=name,
        command=command,
        date=time.strftime("%Y-%m-%d"),
        seconds=None if seconds is None else round(seconds),
        load_average=round(os.getloadavg()[0], 1),
        machine=describe_machine(),
        versions=list_versions(),
        exit_code=exit_code,
        output=output.strip(),
    )


def describe_machine() -> str:
    memory_gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{os.cpu_count()} cores, {memory_gigabytes:.0f} GB of memory, {_describe_system()} on {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def _describe_system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def list_versions() -> str:
    found = [f"SQLite {sqlite3.sqlite_version}"]
    if (binaries := find_binaries(18)) is not None:
        printed = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=False)
        found.append(f"PostgreSQL {printed.stdout.split()[-1]}" if printed.stdout else "PostgreSQL 18")
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def load_results() -> dict[str, BenchmarkResult]:
    if not STORE.exists():
        return {}
    return {each["name"]: BenchmarkResult(**each) for each in json.loads(STORE.read_text("utf-8"))}


def store_results(results: Mapping[str, BenchmarkResult]) -> None:
    stored = [asdict(results[name]) for name in sorted(results)]
    STORE.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def render_page(results: Iterable[BenchmarkResult]) -> str:
    results = list(results)
    environments = list(dict.fromkeys(result.environment for result in results))
    listed = "\n".join(f"{number}. {each}" for number, each in enumerate(environments, start=1))
    rows = [render_goals(result) for result in results if result.goals]
    sections = "\n".join(
        render_section(result, environment=environments.index(result.environment) + 1) for result in results
    )
    return f"""# Benchmarks

<!-- Written by `just bench all --report`; change the benchmarks, not this page. -->

Every goal is a ratio within one run, CPU time per operation, or a count, so that it means the same on another machine.
Other times are for orientation only. Each section has the command that prints its figures, the date, the environment,
and the one-minute load average of the machine at its end: its cores are shared, so a high one makes all times longer.
A command with `--quick` uses small sizes.

Environments:

{listed}

| benchmark | goals met | missed, and why |
|---|---|---|
{chr(10).join(rows)}

{sections}"""


def render_goals(result: BenchmarkResult) -> str:
    """Row of the table of goals: how many were met, and for each reason the measures that missed theirs."""
    missed: dict[str, list[str]] = {}
    for measure, value, goal, met in result.goals:
        if not met:
            missed.setdefault(explain_miss(measure), []).append(_format_goal(measure, value, goal))
    met_count = sum(met for *_, met in result.goals)
    causes = ". ".join(f"{', '.join(measures)}: {reason}" for reason, measures in missed.items())
    return f"| [{result.name}](#{result.name}) | {met_count} of {len(result.goals)} | {causes} |"


def _format_goal(measure: str, value: str, goal: str) -> str:
    return f"`{measure.partition('.')[2]}` {value} (at most {goal})"


def explain_miss(measure: str) -> str:
    """Why a goal is missed; empty without a known reason."""
    return next((reason for pattern, reason in MISSED_REASONS.items() if re.fullmatch(pattern, measure)), "")


def render_section(result: BenchmarkResult, *, environment: int) -> str:
    took = "" if result.seconds is None else f" in {result.seconds:,.0f} s"
    text = re.sub(r"\n{3,}", "\n\n", _GOAL.sub("", result.output)).strip()
    picture = PICTURES.get(result.name)
    parts = [
        f"## {result.name}",
        read_description(result.name),
        f"`{result.command}`{took}, {result.date}, environment {environment}, load average {result.load_average}",
        *([f"![Plot of {result.name}]({picture})"] if picture and (DOCS / picture).exists() else []),
        f"```text\n{text}\n```",
        *(["Goals: " + ", ".join(_format_goal(*goal[:3]) for goal in result.goals) + "."] if result.goals else []),
    ]
    return "\n\n".join(parts) + "\n"


def read_description(name: str) -> str:
    """First paragraph of the benchmark's docstring."""
    docstring = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))) or ""
    return docstring.partition("\n\n")[0]
