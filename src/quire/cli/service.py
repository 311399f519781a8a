"""`quire service`: keeps the user's server running, by the service manager of the operating system.

Linux has systemd user units, macOS has launchd agents, Windows has scheduled tasks. Each runs `quire serve` when the
user logs in, restarts it after a crash, and discards its standard output, which has the token.
"""

import os
import plistlib
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple
from xml.sax.saxutils import escape

import typer

from quire import __version__
from quire.cli.common import EXIT_FAILED
from quire.cli.output import print_note
from quire.cli.paths import write_atomically
from quire.cli.service_client import ask_service
from quire.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Callable

UNIT_NAME = "quire.service"
LAUNCHD_LABEL = "quire.serve"
TASK_NAME = "Quire"
START_SECONDS = 30.0
"""Time in which a server that was installed has to answer."""
COMMAND_SECONDS = 60.0
"""Time limit of the service manager's own command."""
PASSED_VARIABLES = ("QUIRE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
"""Environment variables that decide where the settings and the data of the user are."""


def command(
    action: Annotated[
        Literal["install", "status", "uninstall"],
        typer.Argument(help="Install and start the service, show its state, or remove it."),
    ],
) -> None:
    """Keep one server running for every `quire run`, the web interface and the status line.

    `install` writes a systemd user unit, a launchd agent or a scheduled task that runs `quire serve`, and starts it.
    Run it again after an upgrade to restart the new version. `status` exits with 1 if no server answers.
    """
    if action == "status":
        print_status()
        return
    manager = find_manager(sys.platform)
    if action == "uninstall":
        if not manager.uninstall():
            print_note("The service is not installed.")
            return
        print_note("Removed the service. Settings and conversations stay; docs/uninstall.md removes those too.")
        return
    running = ask_service({"command": "describe"})
    manager.install(build_program())
    deadline = time.monotonic() + START_SECONDS
    while (service := ask_service({"command": "describe"})) is None or (running or {}).get("pid") == service["pid"]:
        if time.monotonic() > deadline:
            raise InvalidConfiguration(
                f"The service was installed, but does not answer; {manager.log_hint}. If `quire serve` runs in a "
                "terminal, stop it first."
            )
        time.sleep(0.1)
    print_note(f"Installed the service: Quire {service['version']} at {service['url']}.")


def print_status() -> None:
    """Prints where the server runs, and whether it is of this version."""
    service = ask_service({"command": "describe"})
    if service is None:
        print_note("No server runs. `quire service install` installs one, `quire serve` runs one in this terminal.")
        raise typer.Exit(EXIT_FAILED)
    typer.echo(f"Quire {service['version']} at {service['url']}, process {service['pid']}")
    if service["version"] != __version__:
        print_note(f"This command is Quire {__version__}: `quire service install` restarts the service with it.")


def build_program() -> list[str]:
    """This program by its absolute path, because service managers have their own PATH."""
    program = Path(sys.argv[0])
    found = str(program.absolute()) if program.stem == "quire" else shutil.which("quire")
    return [*([found] if found else [sys.executable, "-P", "-m", "quire"]), "serve"]


class ServiceManager(NamedTuple):
    """How a service is installed on an operating system."""

    install: "Callable[[Sequence[str]], None]"
    uninstall: "Callable[[], bool]"
    """Returns whether it was installed."""
    log_hint: str


def find_manager(platform: str) -> ServiceManager:
    if platform == "win32":
        return ServiceManager(_install_task, _uninstall_task, f"see the task {TASK_NAME} in the Task Scheduler")
    if platform == "darwin":
        return ServiceManager(_install_agent, _uninstall_agent, f"see `launchctl print gui/$UID/{LAUNCHD_LABEL}`")
    return ServiceManager(_install_unit, _uninstall_unit, f"see `journalctl --user --unit {UNIT_NAME}`")


# systemd


def get_unit_path(environ: Mapping[str, str]) -> Path:
    config = environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config, "systemd", "user", UNIT_NAME)


def format_unit(program: Sequence[str], environ: Mapping[str, str]) -> str:
    """A unit file. Its notation has quotes like C, `%` for specifiers, and `$` for variables in arguments."""

    def quote(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        return f'"{escaped}"'

    variables = [f"Environment={quote(f'{name}={environ[name]}')}" for name in PASSED_VARIABLES if environ.get(name)]
    return "\n".join(
        [
            "[Unit]",
            "Description=Quire, a context engine for LLM chat and agents",
            "",
            "[Service]",
            f"ExecStart={' '.join([quote(program[0]), *(quote(each.replace('$', '$$')) for each in program[1:])])}",
            *variables,
            "Restart=on-failure",
            "StandardOutput=null",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _install_unit(program: Sequence[str]) -> None:
    write_atomically(get_unit_path(os.environ), format_unit(program, os.environ))
    _call("systemctl", "--user", "daemon-reload")
    _call("systemctl", "--user", "enable", UNIT_NAME)
    _call("systemctl", "--user", "restart", UNIT_NAME)


def _uninstall_unit() -> bool:
    path = get_unit_path(os.environ)
    if not path.exists():
        return False
    _call("systemctl", "--user", "disable", "--now", UNIT_NAME)
    path.unlink()
    for folder in (path.parent, path.parent.parent):
        with suppress(OSError):
            folder.rmdir()  # Fails if the user has other units.
    _call("systemctl", "--user", "daemon-reload")
    return True


# launchd


def get_agent_path() -> Path:
    return Path.home() / "Library" / "LaunchAgents" / f"{LAUNCHD_LABEL}.plist"


def format_agent(program: Sequence[str], environ: Mapping[str, str]) -> bytes:
    return plistlib.dumps(
        {
            "Label": LAUNCHD_LABEL,
            "ProgramArguments": list(program),
            "EnvironmentVariables": {name: environ[name] for name in PASSED_VARIABLES if environ.get(name)},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ProcessType": "Background",
            "StandardOutPath": "/dev/null",
        }
    )


def _install_agent(program: Sequence[str]) -> None:
    path = get_agent_path()
    _uninstall_agent()
    write_atomically(path, format_agent(program, os.environ).decode())
    _call("launchctl", "bootstrap", f"gui/{os.getuid()}", str(path))


def _uninstall_agent() -> bool:
    path = get_agent_path()
    if not path.exists():
        return False
    # It may be installed without running.
    _call("launchctl", "bootout", f"gui/{os.getuid()}/{LAUNCHD_LABEL}", may_fail=True)
    path.unlink()
    return True


# Windows


def format_task(program: Sequence[str], user: str) -> str:
    """A task definition of the Task Scheduler, version 1.2."""
    command, arguments = escape(program[0]), escape(subprocess.list2cmdline(program[1:]))
    return f"""<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo><Description>Quire, a context engine for LLM chat and agents</Description></RegistrationInfo>
  <Triggers><LogonTrigger><Enabled>true</Enabled><UserId>{escape(user)}</UserId></LogonTrigger></Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{escape(user)}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <Hidden>true</Hidden>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>3</Count></RestartOnFailure>
  </Settings>
  <Actions Context="Author"><Exec><Command>{command}</Command><Arguments>{arguments}</Arguments></Exec></Actions>
</Task>
"""


def _install_task(program: Sequence[str]) -> None:
    import tempfile

    user = f"{os.environ['USERDOMAIN']}\\{os.environ['USERNAME']}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "quire.xml")
        path.write_text(format_task(program, user), encoding="utf-16")
        _call("schtasks", "/End", "/TN", TASK_NAME, may_fail=True)
        _call("schtasks", "/Create", "/F", "/TN", TASK_NAME, "/XML", str(path))
    _call("schtasks", "/Run", "/TN", TASK_NAME)


def _uninstall_task() -> bool:
    if not _call("schtasks", "/Query", "/TN", TASK_NAME, may_fail=True):
        return False
    _call("schtasks", "/End", "/TN", TASK_NAME, may_fail=True)
    return _call("schtasks", "/Delete", "/F", "/TN", TASK_NAME)


def _call(*words: str, may_fail: bool = False) -> bool:
    """Runs a command of the service manager; returns whether it succeeded."""
    try:
        done = subprocess.run(  # noqa: S603 (words of this module)
            words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        reason = done.stderr.strip() or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        done, reason = None, str(error)
    if done is not None and done.returncode == 0:
        return True
    if may_fail:
        return False
    raise InvalidConfiguration(
        f"`{' '.join(words)}` failed: {reason}. Without this service manager, run `quire serve` in a terminal or by "
        "your own means; every `quire run` finds it."
    )
