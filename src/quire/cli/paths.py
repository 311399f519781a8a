"""Paths of the command line: settings files, the default database and agents, where each platform has them.

On Linux these are the XDG base directories; `XDG_CONFIG_HOME` and `XDG_DATA_HOME` also count on macOS.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from quire.errors import DocumentNotFound, InvalidConfiguration

APP_NAME = "quire"
SETTINGS_FILENAME = "quire.toml"
AGENT_FILENAME = "agent.toml"


def get_user_settings_path(environ: Mapping[str, str]) -> Path:
    """Returns the user's settings file; `QUIRE_CONFIG` overrides it."""
    if path := environ.get("QUIRE_CONFIG"):
        return Path(path).expanduser()
    return _get_config_folder() / SETTINGS_FILENAME


def find_project_settings_path(folder: Path) -> Path | None:
    """Finds the nearest settings file in the folder or its parents, up to the repository's root or the user's home.

    In a folder that is in neither, only that folder counts: parents such as `/tmp` belong to others.
    """
    searched: list[Path] = []
    for each in (folder, *folder.parents):
        searched.append(each)
        if (each / ".git").exists() or each == Path.home():
            break
    else:
        searched = [folder]
    return next((file for each in searched if (file := each / SETTINGS_FILENAME).is_file()), None)


def get_default_database_path() -> Path:
    return _get_data_folder() / "quire.db"


def get_default_database_url() -> str:
    return f"sqlite:///{get_default_database_path()}"


def get_servers_folder() -> Path:
    """Returns the folder with one file for each running server."""
    return _get_data_folder() / "servers"


def get_trust_path() -> Path:
    """Returns the file with the user's decisions about settings files of folders."""
    return _get_data_folder() / "trust.json"


def get_hook_backups_folder() -> Path:
    """Returns the folder with the settings of agents as they were before Quire's hooks."""
    return _get_data_folder() / "hooks"


def get_sessions_folder() -> Path:
    """Returns the folder with sessions that an agent imports by itself."""
    return _get_data_folder() / "sessions"


def _get_data_folder() -> Path:
    return platformdirs.user_data_path(APP_NAME, appauthor=False)


def get_agents_folder() -> Path:
    return _get_config_folder() / "agents"


def _get_config_folder() -> Path:
    return platformdirs.user_config_path(APP_NAME, appauthor=False)


def find_agent_files() -> dict[str, Path]:
    """Finds the user's agents by name: `NAME/agent.toml`, next to its rules and references, or `NAME.toml`."""
    folder = get_agents_folder()
    files = {file.stem: file for file in folder.glob("*.toml")}
    files |= {file.parent.name: file for file in folder.glob(f"*/{AGENT_FILENAME}")}
    return dict(sorted(files.items()))


def find_agent_file(name: str) -> Path:
    """Finds an agent's file by the agent's name or by path."""
    files = find_agent_files()
    if name in files:
        return files[name]
    path = Path(name).expanduser()
    if path.suffix == ".toml" and path.is_file():
        return path
    existing = f"existing agents: {', '.join(files)}" if files else "there are no agents yet"
    raise DocumentNotFound(
        f"There is no agent {name!r}; {existing}. An agent is a file such as {get_agents_folder()}/NAME.toml."
    )


def write_atomically(path: Path, text: str) -> None:
    """Writes a temporary file and renames it, so that the file is replaced as a whole or not at all."""
    import tempfile

    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            file.write(text)
        umask = os.umask(0o022)
        os.umask(umask)
        part = Path(file.name)
        part.chmod(target.stat().st_mode if target.exists() else 0o666 & ~umask)
        part.replace(target)
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be written: {error.strerror}.") from error
