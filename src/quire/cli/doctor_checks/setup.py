"""The set-up that the checks examine, and the order in which they run."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quire.cli.doctor_checks import agents, installation, models, storage
from quire.cli.doctor_checks.findings import Finding, report_note, report_ok, report_problem
from quire.cli.engine_setup import load_setting_layers, resolve_database_url, to_overrides
from quire.errors import QuireError
from quire.settings import Settings
from quire.settings.sources import load_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSetup:
    """The settings as far as they can be loaded, and the environment."""

    settings: Settings
    origins: Mapping[str, str]
    """Source of each setting that is set."""
    settings_error: str | None
    environ: Mapping[str, str]
    folder: Path
    offline: bool
    sends_request: bool

    @property
    def database_url(self) -> str:
        return resolve_database_url(self.settings)


def load_doctor_setup(pairs: Iterable[str] = (), *, offline: bool = False, sends_request: bool = False) -> DoctorSetup:
    """Loads the settings; with an invalid source, the checks run on the defaults."""
    error: str | None = None
    try:
        loaded = load_settings(load_setting_layers(to_overrides(tuple(pairs))))
    except QuireError as invalid:
        loaded, error = load_settings([]), str(invalid)
    return DoctorSetup(
        settings=loaded.settings,
        origins=loaded.origins,
        settings_error=error,
        environ=os.environ,
        folder=Path.cwd(),
        offline=offline,
        sends_request=sends_request,
    )


def check_settings(setup: DoctorSetup) -> list[Finding]:
    if setup.settings_error is not None:
        remedy = "Correct that source; `quire config list` then prints every setting and where it comes from."
        return [report_problem("settings", setup.settings_error, remedy)]
    sources = list(dict.fromkeys(setup.origins.values()))
    if not sources:
        return [
            report_note("settings", "No setting is set; the defaults apply.", "Run `quire init` to choose a model.")
        ]
    counts = {source: sum(each == source for each in setup.origins.values()) for source in sources}
    return [report_ok("settings", ", ".join(f"{count} from {source}" for source, count in counts.items()))]


CHECKS: tuple[Callable[[DoctorSetup], list[Finding]], ...] = (
    installation.check_versions,
    check_settings,
    installation.check_extras,
    storage.check_data_folder,
    storage.check_database,
    models.check_model,
    models.check_counts,
    models.check_vault,
    agents.check_hooks,
    agents.check_mcp,
)


def run_checks(setup: DoctorSetup) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(setup)]
