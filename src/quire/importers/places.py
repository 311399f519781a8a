"""Folders of a user in which programs store their data, on Linux, macOS and Windows.

Every form is listed, whatever this machine is: only the existing ones are read.
"""

from collections.abc import Mapping
from pathlib import Path

_EDITORS = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")


def find_home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or env.get("USERPROFILE") or Path.home())


def find_data_folder(env: Mapping[str, str]) -> Path:
    """The XDG data folder, which some programs use on macOS and Windows, too."""
    return Path(env.get("XDG_DATA_HOME") or find_home(env) / ".local" / "share")


def list_application_folders(env: Mapping[str, str]) -> list[Path]:
    """Where desktop programs have a folder of their own: XDG configuration, Application Support, AppData."""
    home = find_home(env)
    folders = [Path(env.get("XDG_CONFIG_HOME") or home / ".config"), home / "Library" / "Application Support"]
    return folders + [Path(env[name]) for name in ("APPDATA", "LOCALAPPDATA") if env.get(name)]


def list_editor_folders(env: Mapping[str, str]) -> list[Path]:
    """The user folders of VS Code and of editors that are built from it."""
    return [folder / editor / "User" for folder in list_application_folders(env) for editor in _EDITORS]
