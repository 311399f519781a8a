"""Paths of the user's settings, data and agents on each platform."""

from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from quire.cli import paths


@pytest.fixture
def use_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return lambda platform: monkeypatch.setattr(platformdirs, "PlatformDirs", platform)


def test_linux_has_the_xdg_base_directories(
    use_platform: Callable[[type], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_platform(Unix)
    assert paths.get_user_settings_path({}) == tmp_path / ".config/quire/quire.toml"
    assert paths.get_agents_folder() == tmp_path / ".config/quire/agents"
    assert paths.get_default_database_url() == f"sqlite:///{tmp_path}/.local/share/quire/quire.db"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert paths.get_agents_folder() == tmp_path / "settings/quire/agents"
    assert paths.get_default_database_url() == f"sqlite:///{tmp_path}/data/quire/quire.db"


def test_macos_has_application_support(use_platform: Callable[[type], None], tmp_path: Path):
    use_platform(MacOS)
    folder = tmp_path / "Library/Application Support/quire"
    assert paths.get_user_settings_path({}) == folder / "quire.toml"
    assert paths.get_default_database_url() == f"sqlite:///{folder}/quire.db"


def test_an_explicit_settings_file_comes_first():
    assert paths.get_user_settings_path({"QUIRE_CONFIG": "/etc/quire.toml"}) == Path("/etc/quire.toml")
