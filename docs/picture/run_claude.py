"""Takes the screenshots of docs/run-claude-code.md: python docs/picture/run_claude.py.

The real Claude Code through `quire run` in an empty home. The provider is scripted, the files and the tool calls are
real. Between the two questions a tool result is dropped. Needs the built page, Chromium, and the agents
(`just install-agents`).
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page
from infra.real_agents import find_claude
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedReply, run_scripted_provider

QUIRE = str(Path(sys.executable).with_name("quire"))
PROMPTS = ("Why does the relay not start?", "Use the next free port, and run it again.")
RELAY = """\
port=$(cat port.txt)
[ "$port" != 7420 ] && echo "relay: listening on port $port" && exit
echo "relay: cannot bind port $port"
for number in $(seq 120); do echo "  retry $number: address already in use by pid 4312 (old-gateway)"; done
exit 1
"""
STEPS = (
    ("Why does", "sh relay.sh", "I will start it and read what it prints."),
    ("next free", "echo 7421 > port.txt && sh relay.sh", "Port 7421 is free."),
)
ANSWERS = (
    "Port 7420 is taken by the old gateway, process 4312. The relay tried 120 times and gave up.",
    "The relay listens on port 7421 now. I changed `port.txt`. The old gateway still runs.",
)


def answer(request: ProviderRequest) -> ScriptedReply:
    if "Bash" not in request.tool_names:
        return ScriptedReply("Port of the relay")
    turn = int(STEPS[1][0] in str(request.items))
    _, command, text = STEPS[turn]
    if request.newest_results:
        return ScriptedReply(ANSWERS[turn])
    return ScriptedReply(text, calls=(ScriptedCall("Bash", {"command": command, "description": "Start the relay"}),))


def main() -> None:
    claude = find_claude()
    assert claude is not None, "run `just install-agents`"
    with tempfile.TemporaryDirectory() as folder, run_scripted_provider(answer) as provider:
        home = Path(folder) / "home"
        project = home / "relay"
        project.mkdir(parents=True)
        (project / "relay.sh").write_text(RELAY)
        (project / "port.txt").write_text("7420\n")
        environ = {
            "HOME": str(home),
            "PATH": f"{claude.parent}:{os.environ['PATH']}",
            "ANTHROPIC_BASE_URL": provider.url,
            "ANTHROPIC_API_KEY": "sk-ant-a-key-for-the-picture",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        for prompt in PROMPTS:
            more = ["--continue"] if prompt != PROMPTS[0] else []
            command = [QUIRE, "run", "claude", "-p", prompt, *more, "--allowedTools", "Bash"]
            subprocess.run(command, cwd=project, env=environ, stdin=subprocess.DEVNULL, check=True)  # noqa: S603
            if not more:
                shown = subprocess.run(  # noqa: S603
                    [QUIRE, "conversation", "show", "--json"], cwd=project, env=environ, capture_output=True, check=True
                )
                entries = json.loads(shown.stdout)["entries"]
                [result] = [each["seq"] for each in entries if each["role"] == "tool"]
                drop = [QUIRE, "context", "drop", str(result), "--now", "--reason", "120 retries, already explained"]
                subprocess.run(drop, cwd=project, env=environ, check=True)  # noqa: S603
        listed = subprocess.run(  # noqa: S603
            [QUIRE, "conversation", "list", "--json"], cwd=project, env=environ, capture_output=True, check=True
        )
        [conversation] = [each["id"] for each in json.loads(listed.stdout)["conversations"] if "relay" in each["title"]]
        with serve(project, environ) as address:
            asyncio.run(take_pictures(f"{address}#/c/{conversation}"))


@contextmanager
def serve(project: Path, environ: dict[str, str]) -> Iterator[str]:
    """Runs `quire serve`; yields the address that it prints."""
    process = subprocess.Popen(  # noqa: S603
        [QUIRE, "serve", "--port", "0"], cwd=project, env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


async def take_pictures(address: str) -> None:
    async with page.launch_browser() as browser:
        for suffix in ("", "-dark"):
            opened = await page.open_page(browser, address, "panel=context&reply=11", dark=bool(suffix))
            await page.take_screenshot(opened, f"run-claude{suffix}")


if __name__ == "__main__":
    main()
