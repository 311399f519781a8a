"""Where the command line looks for settings and keeps data, for one user on one machine."""

from collections.abc import Mapping
from pathlib import Path

SETTINGS_FILE = "quire.toml"


def user_settings(environ: Mapping[str, str]) -> Path:
    """The user's own file; `QUIRE_CONFIG` names another."""
    if named := environ.get("QUIRE_CONFIG"):
        return Path(named).expanduser()
    return _folder(environ, "XDG_CONFIG_HOME", ".config") / SETTINGS_FILE


def project_settings(folder: Path) -> Path | None:
    """The nearest file from a folder upwards."""
    return next((file for each in (folder, *folder.parents) if (file := each / SETTINGS_FILE).is_file()), None)


def default_database(environ: Mapping[str, str]) -> str:
    return f"sqlite:///{_folder(environ, 'XDG_DATA_HOME', '.local/share') / 'quire.db'}"


def agents_folder(environ: Mapping[str, str]) -> Path:
    return _folder(environ, "XDG_CONFIG_HOME", ".config") / "agents"


def _folder(environ: Mapping[str, str], variable: str, usual: str) -> Path:
    base = environ.get(variable)
    return (Path(base) if base else Path(environ.get("HOME", "~")).expanduser() / usual) / "quire"
