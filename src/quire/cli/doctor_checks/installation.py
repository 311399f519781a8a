"""Checks of the installation: versions, and the extras that the settings need."""

import platform
import sqlite3
from collections.abc import Iterator
from importlib.util import find_spec

from quire import __version__
from quire.cli.doctor_checks.findings import Finding, report_ok, report_problem
from quire.cli.doctor_checks.setup import DoctorSetup

EXTRA_MODULES = {
    "llm": "pydantic_ai",
    "models": "genai_prices",
    "postgres": "psycopg",
    "vault": "yaml",
    "embeddings": "wordllama",
    "encoder": "onnxruntime",
    "mcp": "mcp",
    "server": "fastapi",
    "worker": "procrastinate",
}
"""A module by which an installed extra is recognized."""


def check_versions(setup: DoctorSetup) -> list[Finding]:
    return [
        report_ok(
            "versions",
            f"quire {__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
            f"{platform.system()} {platform.release()} {platform.machine()}",
        )
    ]


def check_extras(setup: DoctorSetup) -> list[Finding]:
    """The extras that are installed, and a problem for each one that a setting needs."""
    installed = list_extras()
    missing = [
        report_problem("extras", f"{feature} needs the extra {extra!r}.", f'Run `pip install "quire[{extra}]"`.')
        for extra, feature in _list_needed_extras(setup)
        if extra not in installed
    ]
    return missing or [report_ok("extras", f"installed: {', '.join(installed) or 'none'}")]


def list_extras() -> list[str]:
    return [extra for extra, module in EXTRA_MODULES.items() if find_spec(module) is not None]


def _list_needed_extras(setup: DoctorSetup) -> Iterator[tuple[str, str]]:
    settings = setup.settings
    yield "llm", "Calling a model"
    if setup.database_url.startswith("postgres"):
        yield "postgres", "A PostgreSQL database"
    if settings.vault is not None:
        yield "vault", "A vault"
    if settings.embeddings == "local":
        yield "embeddings", '`embeddings = "local"`'
    elif settings.embeddings is not None and settings.embeddings.startswith("onnx:"):
        yield "encoder", "A sentence encoder"
