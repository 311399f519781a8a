"""`quire doctor`: checks the set-up, names what is wrong and the remedy, and writes a report for bug reports."""

import json
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire import __version__
from quire.cli.common import EXIT_FAILED, SetOptions
from quire.cli.output import Result, make_table, make_text, pluralize, print_note
from quire.errors import InvalidRequest, QuireError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.cli.doctor_checks import DoctorSetup
    from quire.schemas.setup import FindingsSchema

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
            "--send", help="Send one short request to compare token counts. It may cost a fraction of a cent."
        ),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write a file for a bug report, without messages, keys, names or paths."
        ),
    ] = None,
    overrides: SetOptions = None,
) -> Result:
    """Check settings, database, model, vault, hooks and versions, and say what to do about each problem.

    Nothing is changed. The exit code is 1 if there is a problem.
    """
    from quire.cli.doctor_checks import CHECKS, DoctorSetup
    from quire.cli.engine_setup import load_setting_layers
    from quire.cli.workspace_trust import ignore_untrusted
    from quire.schemas.setup import FindingsSchema
    from quire.settings.sources import load_settings

    error: str | None = None
    try:
        loaded = load_settings(load_setting_layers(overrides, decide=ignore_untrusted))
    except QuireError as invalid:  # The checks then run on the defaults.
        loaded, error = load_settings([]), str(invalid)
    setup = DoctorSetup(
        settings=loaded.settings,
        origins=loaded.origins,
        settings_error=error,
        environ=os.environ,
        folder=Path.cwd(),
        offline=offline,
        sends_request=send,
    )
    findings = [finding for check in CHECKS for finding in check(setup)]
    document = FindingsSchema(problems=sum(each.status == "problem" for each in findings), findings=findings)
    if bundle is not None:
        text = json.dumps(build_report(setup, document), indent=2, ensure_ascii=False)
        try:
            bundle.write_text(f"{text}\n", encoding="utf-8")
        except OSError as failure:
            raise InvalidRequest(f"{bundle} cannot be written: {failure.strerror}; choose another file.") from failure
        print_note(f"Wrote {bundle}. Read it before you share it.")
    return Result(document, lambda _: _draw(document), exit_code=EXIT_FAILED if document.problems else 0)


def _draw(document: "FindingsSchema") -> "Iterable[RenderableType]":
    rows = [
        (
            make_text(each.status, STATUS_STYLES[each.status]),
            each.check,
            f"{each.detail}\n→ {each.remedy}" if each.remedy else each.detail,
        )
        for each in document.findings
    ]
    yield make_table("", "check", "found", rows=rows, wrapped=("found",))
    count = document.problems
    yield make_text(f"\n{pluralize(count, 'problem')} found." if count else "\nNo problem found.")


def build_report(setup: "DoctorSetup", document: "FindingsSchema") -> dict[str, Any]:
    """What a bug report needs: statuses, versions, and settings that are numbers. No text of the user is in it."""
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    from quire.cli.doctor_checks import EXTRA_MODULES, list_extras
    from quire.model.secrets import mask_secrets

    distributions, packages = packages_distributions(), dict[str, str]()
    for module in ("sqlalchemy", "pydantic", "splintr", "numpy", "typer", *EXTRA_MODULES.values()):
        for distribution in distributions.get(module, ())[:1]:
            with suppress(PackageNotFoundError):
                packages[distribution] = version(distribution)
    values = setup.settings.model_dump(mode="json")
    settings: dict[str, dict[str, Any]] = {}
    for name, origin in setup.origins.items():
        value: object = values.get(name)
        if not isinstance(value, SHARED_SETTING_TYPES):
            value = mask_secrets(str(value)) if name in SHARED_SETTINGS else "(set)"
        source = "file" if origin.endswith(".toml") else "environment" if origin.startswith("QUIRE_") else "option"
        settings[name] = {"value": value, "source": source}
    return {
        "quire": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": packages,
        "extras": list_extras(),
        "database": setup.database_url.partition(":")[0],
        "settings": settings,
        "variables": sorted(name for name in os.environ if name.startswith("QUIRE_")),
        "findings": [{"check": each.check, "status": each.status} for each in document.findings],
    }
