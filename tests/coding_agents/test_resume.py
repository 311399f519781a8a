"""Sessions that Quire writes are continued by the real agents, whose first request has every message of the log."""

import asyncio
import json
import os
import sys
from asyncio import to_thread
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from importers.transcript_files import FOLDERS, import_path
from infra.real_agents import (
    AgentRun,
    Claude,
    Codex,
    Gemini,
    OpenCode,
    find_claude,
    find_codex,
    find_gemini,
    find_opencode,
)
from infra.resume_samples import (
    CLIENTS,
    Piece,
    ResumeSample,
    find_missing,
    list_chat_pieces,
    list_gemini_pieces,
    list_messages_pieces,
    list_responses_pieces,
    write_sample,
)
from infra.scripted_provider import ScriptedProvider, run_scripted_provider
from infra.sizes import IS_FULL_SIZE
from quire.cli.resume import read_history
from quire.model import TextPart
from quire.resume.registry import find_writer
from quire.resume.session import NativeSession, SessionPlace, write_session
from quire.store import SqlStore

pytestmark = pytest.mark.slow

SEEDS = range(25) if IS_FULL_SIZE else range(1, 2)
PROMPT = "And now?"
INSTALLED: dict[str, Callable[[], Path | None]] = {
    "claude": find_claude,
    "codex": find_codex,
    "gemini": find_gemini,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("program", ["claude", "codex", pytest.param("gemini", marks=pytest.mark.nightly)])
async def test_an_agent_continues_a_written_session(program: str, seed: int, store: SqlStore, tmp_path: Path):
    if INSTALLED[program]() is None:
        pytest.skip(f"{program.upper()} IS NOT INSTALLED: its sessions are not resumed (`just install-agents`)")
    sample = await write_sample(store, seed, client=CLIENTS[seed % len(CLIENTS)])
    run, sent = await RUNNERS[program](store, sample, tmp_path)
    assert run.exit_code == 0, run.stdout + run.stderr
    assert "Done." in run.stdout
    assert find_missing(sample, sent) == []
    assert any(PROMPT in piece.text for piece in sent[-4:])


@pytest.fixture(scope="module")
def opencode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenCode, str, ScriptedProvider]]:
    """opencode, the address of its server, and its provider. It takes seconds to start, so that all tests share it."""
    if find_opencode() is None:
        pytest.skip("OPENCODE IS NOT INSTALLED: its sessions are not resumed (`just install-agents`)")
    with run_scripted_provider() as provider:
        agent = OpenCode(tmp_path_factory.mktemp("opencode"), provider.url)
        with agent.serve() as url:
            yield agent, url, provider


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
async def test_opencode_continues_a_written_session(
    seed: int, store: SqlStore, opencode: tuple[OpenCode, str, ScriptedProvider]
):
    agent, url, provider = opencode
    sample = await write_sample(store, seed, client=CLIENTS[seed % len(CLIENTS)])
    session = await write(store, sample, "opencode", agent.home, agent.work)
    await agent.import_session(*session.import_arguments)
    first = len(provider.requests)
    body = json.dumps({"parts": [{"type": "text", "text": PROMPT}]}).encode()
    request = Request(f"{url}/session/{session.id}/message", body, {"content-type": "application/json"})

    def send() -> str:
        with urlopen(request, timeout=120) as response:
            return response.read().decode()

    assert "Done." in await to_thread(send)
    # Requests without tools ask for a title.
    sent = list_chat_pieces(next(each for each in provider.requests[first:] if each.tool_names).items)
    assert find_missing(sample, sent) == []
    assert PROMPT in sent[-1].text


@pytest.mark.nightly
@pytest.mark.parametrize("program", ["claude", "codex"])
@pytest.mark.parametrize("source", FOLDERS)
async def test_an_agent_continues_what_the_other_one_stored(source: str, program: str, store: SqlStore, tmp_path: Path):
    """Real transcripts, imported: what they hold besides texts and calls must not keep an agent from reading them."""
    if INSTALLED[program]() is None:
        pytest.skip(f"{program.upper()} IS NOT INSTALLED: its sessions are not resumed (`just install-agents`)")
    await import_path(store, source, FOLDERS[source])
    records = await store.list_conversations()
    assert len(records) == 3
    for number, record in enumerate(records):
        entries = [each for each in await store.read_range(record.id) if each.kind == "message"]
        first_compaction = next(iter(await store.read_range(record.id, kinds=["compaction"])), None)
        last = first_compaction.seq - 1 if first_compaction is not None else entries[-1].seq
        said = [each.message for each in entries if each.seq <= last and each.role in ("user", "assistant")]
        texts = [part.text for message in said for part in message.parts if isinstance(part, TextPart)]
        sample = ResumeSample(record, last, expected=[[Piece("user", text)] for text in texts if text.strip()])
        run, sent = await RUNNERS[program](store, sample, tmp_path / str(number))
        assert run.exit_code == 0, run.stdout + run.stderr
        assert find_missing(sample, [piece._replace(speaker="user") for piece in sent]) == []


@pytest.mark.nightly
@pytest.mark.skipif(find_claude() is None, reason="CLAUDE CODE IS NOT INSTALLED (`just install-agents`)")
async def test_what_an_agent_says_after_resume_is_recorded(tmp_path: Path):
    """`quire resume --run` starts Claude Code with Quire between it and its model."""
    folder, program = tmp_path / "home", tmp_path / "bin" / "claude"
    (folder / ".config/quire").mkdir(parents=True)
    (folder / ".local/share/quire").mkdir(parents=True)
    program.parent.mkdir()
    # In a terminal, the user would type the prompt.
    program.write_text(f'#!/bin/sh\nexec {find_claude()} -p "{PROMPT}" "$@"\n')
    program.chmod(0o755)
    database = f"sqlite:///{folder}/.local/share/quire/quire.db"
    async with SqlStore.open(database) as store:
        sample = await write_sample(store, 1, client="codex")
    environ = Claude(tmp_path, "").make_environment() | {
        "HOME": str(folder),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    del environ["ANTHROPIC_BASE_URL"]
    with run_scripted_provider() as provider:
        upstream = f'[upstreams."*"]\nbase_url = "{provider.url}"\nspeaks = ["messages"]\ncredentials = "client"\n'
        (folder / ".config/quire/quire.toml").write_text(upstream)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "quire", "resume", sample.record.id, "--in", "claude", "--run",
            cwd=folder, env=environ, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        sent = list_messages_pieces(provider.requests[0].items)
    assert "Done." in output
    assert "thinking blocks left out" in output
    assert find_missing(sample, sent) == []
    async with SqlStore.open(database) as store:
        newest = (await store.list_conversations(limit=1, main_only=True))[0]
        assert newest.id != sample.record.id
        texts = [each.message.text for each in await store.read_range(newest.id, kinds=["message"])]
    assert texts[-1] == "Done."


@pytest.mark.nightly
async def test_gemini_keeps_a_session_that_it_resumed(store: SqlStore, tmp_path: Path):
    """Another start deletes resumed sessions whose file is named by their id; the written one is continued again."""
    sample = await write_sample(store, 3, client="codex")
    with run_scripted_provider() as provider:
        agent = Gemini(tmp_path, provider.url)
        session = await write(store, sample, "gemini", agent.home, agent.work)
        for flags in (session.arguments, (), session.arguments):
            assert (await agent.run(PROMPT, *flags)).exit_code == 0
        sent = list_gemini_pieces([each for each in provider.requests if each.is_stream][-1].items)
    assert find_missing(sample, sent) == []
    assert len([piece for piece in sent if piece.text == PROMPT]) == 2


async def write(store: SqlStore, sample: ResumeSample, program: str, home: Path, work: Path) -> NativeSession:
    history = await read_history(store, sample.record, branch=0, last=sample.last, program=program)
    environ = {"HOME": str(home), **({"CODEX_HOME": str(home)} if program == "codex" else {})}
    session = find_writer(program).build_session(
        history, SessionPlace(work.resolve(), environ, home / "quire-sessions")
    )
    write_session(session)
    return session


async def run_claude(store: SqlStore, sample: ResumeSample, folder: Path) -> tuple[AgentRun, list[Piece]]:
    with run_scripted_provider() as provider:
        agent = Claude(folder, provider.url)
        session = await write(store, sample, "claude", agent.home, agent.work)
        run = await agent.run(PROMPT, *session.arguments)
        return run, list_messages_pieces(provider.requests[0].items)


async def run_codex(store: SqlStore, sample: ResumeSample, folder: Path) -> tuple[AgentRun, list[Piece]]:
    with run_scripted_provider() as provider:
        agent = Codex(folder, provider.url)
        session = await write(store, sample, "codex", agent.home, agent.work)
        run = await agent.run(PROMPT, resume=session.id)
        return run, list_responses_pieces(provider.requests[0].items)


async def run_gemini(store: SqlStore, sample: ResumeSample, folder: Path) -> tuple[AgentRun, list[Piece]]:
    with run_scripted_provider() as provider:
        agent = Gemini(folder, provider.url)
        session = await write(store, sample, "gemini", agent.home, agent.work)
        run = await agent.run(PROMPT, *session.arguments)
        requests = [each for each in provider.requests if each.is_stream]
        assert requests, run.stdout + run.stderr
        return run, list_gemini_pieces(requests[0].items)


RUNNERS = {"claude": run_claude, "codex": run_codex, "gemini": run_gemini}
