"""`quire doctor`: checks the set-up, names what is wrong and the remedy, and writes a report for bug reports."""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire import __version__
from quire.cli.common import EXIT_FAILED, AsJson, SetOptions
from quire.cli.output import make_table, make_text, pluralize, print_note, print_result
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.cli.doctor_checks import DoctorSetup, Finding

STATUS_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
SHARED_SETTING_TYPES = (bool, int, float)
"""Values that a report contains; it omits texts and paths."""
SHARED_SETTINGS = ("model", "strategy")
"""Settings whose text a report contains."""


def command(
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Contact no model server.")] = False,
    send: Annotated[
        bool,
        typer.Option(
            "--send", help="Send one short request to compare token counts; it may cost a fraction of a cent."
        ),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a report for a bug report: no messages, keys, names or paths."),
    ] = None,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Check settings, database, model, vault, hooks and versions, and say what to do about each problem.

    Nothing is changed. The exit code is 1 if there is a problem.
    """
    from quire.cli.doctor_checks import load_doctor_setup, run_checks

    setup = load_doctor_setup(overrides or (), offline=offline, sends_request=send)
    findings = run_checks(setup)
    if bundle is not None:
        _write_bundle(bundle, setup, findings)
    problems = sum(each.status == "problem" for each in findings)
    document = {"problems": problems, "findings": [asdict(each) for each in findings]}
    print_result(document, lambda _: _draw(findings, problems), as_json=as_json)
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _draw(findings: "Sequence[Finding]", problems: int) -> "Iterable[RenderableType]":
    yield make_table(
        "", "check", "found",
        rows=[
            (make_text(each.status, STATUS_STYLES[each.status]), each.check, _format_finding(each)) for each in findings
        ],
        wrapped=("found",),
    )  # fmt: skip
    yield make_text(f"\n{pluralize(problems, 'problem')} found." if problems else "\nNo problem found.")


def _format_finding(finding: "Finding") -> str:
    return f"{finding.detail}\n→ {finding.remedy}" if finding.remedy else finding.detail


def _write_bundle(path: Path, setup: "DoctorSetup", findings: "Sequence[Finding]") -> None:
    text = json.dumps(build_report(setup, findings), indent=2, ensure_ascii=False)
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}; choose another file.") from error
    print_note(f"Wrote {path}. Read it before you share it.")


def build_report(setup: "DoctorSetup", findings: "Sequence[Finding]") -> dict[str, Any]:
    """What a bug report needs: statuses, versions, and settings that are numbers. No text of the user is in it."""
    from quire.cli.doctor_checks.installation import EXTRA_MODULES, list_extras

    values = setup.settings.model_dump(mode="json")
    return {
        "quire": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": _list_package_versions(EXTRA_MODULES.values()),
        "extras": list_extras(),
        "database": setup.database_url.partition(":")[0],
        "settings": {
            name: _describe_value(name, values[name], setup.origins[name]) for name in setup.origins if name in values
        },
        "variables": sorted(name for name in os.environ if name.startswith("QUIRE_")),
        "findings": [{"check": each.check, "status": each.status} for each in findings],
    }


def _describe_value(name: str, value: object, origin: str) -> dict[str, Any]:
    from quire.view.secrets import mask_secrets

    source = "file" if origin.endswith(".toml") else "environment" if origin.startswith("QUIRE_") else "option"
    if isinstance(value, SHARED_SETTING_TYPES):
        return {"value": value, "source": source}
    shared = mask_secrets(str(value)) if name in SHARED_SETTINGS else "(set)"
    return {"value": shared, "source": source}


def _list_package_versions(modules: Iterable[str]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    distributions = packages_distributions()
    versions: dict[str, str] = {}
    for module in ("sqlalchemy", "pydantic", "splintr", "numpy", "typer", *modules):
        for distribution in distributions.get(module, ())[:1]:
            try:
                versions[distribution] = version(distribution)
            except PackageNotFoundError:
                continue
    return versions
