"""The order in which the checks run, and the check of the settings themselves."""

from collections.abc import Callable

from quire.cli.doctor_checks import agents, installation, models, storage
from quire.cli.doctor_checks.findings import Finding, report_note, report_ok, report_problem
from quire.cli.doctor_checks.setup import DoctorSetup


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
