"""Takes the screenshots of docs/run-claude-code.md: python docs/picture/run_claude.py.

A real session: Claude Code through `quire run` in an empty home, answered by the local model of the tests. Needs the
built page, Chromium, and the agents (`just install-agents`).
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page
from infra.llama import LocalModel
from infra.real_agents import SMALL_PROMPT_FLAGS, find_claude

QUIRE = str(Path(sys.executable).with_name("quire"))
PROMPTS = ("Say hi and name a river.", "Which sea does it reach?")


def main() -> None:
    claude = find_claude()
    assert claude is not None, "run `just install-agents`"
    with tempfile.TemporaryDirectory() as folder, LocalModel() as model:
        home = Path(folder) / "home"
        project = home / "harbour"
        project.mkdir(parents=True)
        environ = {
            "HOME": str(home),
            "PATH": f"{claude.parent}:{os.environ['PATH']}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        subprocess.run([QUIRE, "init", "--base-url", model.url], cwd=project, env=environ, check=True)  # noqa: S603
        for prompt in PROMPTS:
            more = ["--continue"] if prompt != PROMPTS[0] else []
            command = [QUIRE, "run", "claude", "-p", prompt, *more, *SMALL_PROMPT_FLAGS]
            subprocess.run(command, cwd=project, env=environ, stdin=subprocess.DEVNULL, check=True)  # noqa: S603
        with serve(project, environ) as address:
            asyncio.run(take_pictures(address))


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
            opened = await page.open_page(browser, address, dark=bool(suffix))
            await opened.get_by_text(PROMPTS[0]).first.click()
            await opened.wait_for_timeout(1_000)
            path = opened.url.partition("?")[0]
            await opened.goto(f"{path}?panel=context&reply=4")
            await page.take_screenshot(opened, f"run-claude{suffix}")


if __name__ == "__main__":
    main()
