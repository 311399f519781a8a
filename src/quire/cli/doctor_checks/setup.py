"""The set-up that the checks examine."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
