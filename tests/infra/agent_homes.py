"""Homes of agents with generated sessions: clean ones, and ones with waste planted in them.

Lines have the shape of Claude Code's and Codex's own files. A clean session has what a good one has: a file that is
read twice, a command that fails and then succeeds, a large result that the next reply quotes, a compaction whose
summary has the facts, and a cache that serves all but the newest messages.
"""

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DAY_SECONDS = 86_400
CLAUDE_MODEL, CODEX_MODEL = "claude-sonnet-4-5", "gpt-5"
FIXED_TOKENS = 18_000
"""Instructions and tools of a clean session."""
WORDS = (
    *("the", "river", "carries", "more", "water", "spring", "than", "autumn", "mill", "runs", "day", "and", "night"),
    *("test", "gate", "keeper", "bridge", "valley", "harvest", "barley", "market", "garden", "window", "lantern"),
    *("copper", "timber", "harbour", "weather", "station"),
)


class ClaudeSession:
    """Writes one transcript of Claude Code, line by line, with the usage of a prompt cache that works."""

    def __init__(
        self, number: int, *, project: str, started_at: float, seed: str = "", filler: int = 0, sub_agent_of: str = ""
    ) -> None:
        self._random = random.Random(f"{seed}/{number}/{sub_agent_of}")
        self.id = sub_agent_of or f"{self._random.getrandbits(128):032x}"
        self._number, self._project, self._at = number, project, started_at
        self._is_sub_agent = bool(sub_agent_of)
        self._filler, self._count, self._parent = filler, 0, None
        self.model = CLAUDE_MODEL
        self.fixed = FIXED_TOKENS
        self._prompt_tokens, self._cached_tokens = 0, 0
        self.lines: list[dict[str, Any]] = []
        self._blocks: dict[int, str] = {}

    def text(self, words: int) -> str:
        """Words in random order, from blocks that are made once, and a number that makes them unique."""
        if words not in self._blocks:
            self._blocks[words] = " ".join(self._random.choices(WORDS, k=words))
        return f"{self._blocks[words]} {self._random.getrandbits(40)}"

    def _add(self, kind: str, **fields: Any) -> str:
        self._count += 1
        uuid = f"{self._random.getrandbits(96):024x}-{self._count:08x}"
        at = time.strftime("%Y-%m-%dT%H:%M:%S.120Z", time.gmtime(self._at))
        line = {
            "parentUuid": self._parent, "isSidechain": self._is_sub_agent, "type": kind, **fields, "uuid": uuid,
            "timestamp": at, "userType": "external", "cwd": self._project, "sessionId": self.id,
            "version": "2.1.325", "gitBranch": "main",
        }  # fmt: skip
        self.lines.append(line)
        self._parent = uuid
        self._at += 4
        return uuid

    def forget_cache(self) -> None:
        self._cached_tokens = 0

    def wait(self, seconds: float) -> None:
        self._at += seconds

    def ask(self, text: str) -> None:
        self._add("user", message={"role": "user", "content": text})
        self._prompt_tokens += len(text) // 4

    def reply(
        self, text: str = "", calls: Sequence[tuple[str, dict[str, Any]]] = (), *, cached: float = 1.0
    ) -> list[str]:
        """A reply; `cached` is the share of what the cache could serve that it does. Returns the ids of its calls."""
        ids = [f"toolu_{self._random.getrandbits(64):016x}" for _ in calls]
        text = text or self.text(25)
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
        blocks += [
            {"type": "tool_use", "id": id_, "name": name, "input": arguments}
            for id_, (name, arguments) in zip(ids, calls, strict=True)
        ]
        prompt = self.fixed + self._prompt_tokens
        read = int(self._cached_tokens * cached)
        usage = {
            "input_tokens": 3, "cache_read_input_tokens": read, "cache_creation_input_tokens": prompt - read,
            "output_tokens": 60 + sum(len(json.dumps(each)) for each in blocks) // 4, "service_tier": "standard",
        }  # fmt: skip
        self._cached_tokens = prompt
        self._prompt_tokens += len(json.dumps(blocks)) // 4
        message_id = f"msg_{self._random.getrandbits(96):024x}"
        for block in blocks:
            message = {"id": message_id, "type": "message", "role": "assistant", "model": self.model}
            stop = "tool_use" if calls else "end_turn"
            content = {**message, "content": [block], "stop_reason": stop, "usage": usage}
            self._add("assistant", message=content, requestId=f"req_{message_id[4:]}")
        return ids

    def result(self, call: str, text: str, *, is_error: bool = False) -> None:
        block = {"tool_use_id": call, "type": "tool_result", "content": text, "is_error": is_error}
        output = {"stdout": text[:2_000], "stderr": "", "interrupted": False}
        self._add("user", message={"role": "user", "content": [block]}, toolUseResult=output)
        self._prompt_tokens += len(text) // 4

    def step(self, name: str, arguments: dict[str, Any], result: str, *, is_error: bool = False) -> None:
        [call] = self.reply(calls=[(name, arguments)])
        self.result(call, result, is_error=is_error)

    def compact(self, summary: str) -> None:
        self._add("system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 150_000})
        self._add("user", isCompactSummary=True, message={"role": "user", "content": summary})
        self._prompt_tokens, self._cached_tokens = len(summary) // 4, 0

    def work(self, messages: int) -> None:
        """A clean stretch of work with that many messages, of about `filler` characters each."""
        written, words = 0, max(12, self._filler // 7)
        while written < messages:
            self.ask(f"Please look at part {self._count} of the {self._random.choice(WORDS)} module. {self.text(30)}")
            written += 1
            path = f"{self._project}/src/part_{self._count}.py"
            self.step("Read", {"file_path": path}, self.text(words))
            self.step(
                "Bash", {"command": f"pytest tests/test_{self._count}.py"}, "Exit code 1\n1 failed", is_error=True
            )
            self.step("Edit", {"file_path": path, "old_string": "a", "new_string": "b"}, "The file was updated.")
            self.step("Bash", {"command": f"pytest tests/test_{self._count}.py"}, self.text(words))
            self.step("Read", {"file_path": path}, self.text(words))
            self.reply(self.text(words // 2))
            written += 11

    def save(self, projects: Path, *, age_days: float = 3.0, name: str = "") -> Path:
        folder = projects / self._project.replace("/", "-")
        path = folder / f"{self.id}.jsonl"
        if name:
            path = folder / self.id / "subagents" / f"agent-{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self.lines))
        modified = time.time() - age_days * DAY_SECONDS
        os.utime(path, (modified, modified))
        return path


def write_clean_session(projects: Path, number: int, *, messages: int = 40, filler: int = 0, days: int = 20) -> Path:
    """A session without waste; its day is one of the last `days`."""
    age = 1.0 + number % days
    session = ClaudeSession(
        number, project=f"/home/dev/project{number % 7}", started_at=time.time() - age * DAY_SECONDS, filler=filler
    )
    session.work(messages // 2)
    secret = f"host-{number}-{session.text(1)[-6:]}.internal"
    session.ask(f"The database host is {secret}, port {4000 + number}. Always use the staging account.")
    session.reply("I will.")
    if number % 3 == 0:
        word = f"UsefulIdentifier{number}Value"
        session.step("Bash", {"command": "make report"}, f"{word} {session.text(9_000)}")
        session.reply(f"The report names {word}, which is fine.")
    if number % 4 == 0:
        session.compact(
            f"The user asked for work on modules. The database host is {secret}, port {4000 + number}. Always use the "
            "staging account. Tests of the parts pass."
        )
        session.ask("Go on with the next module, please.")
        session.reply("Gladly.")
        session.ask(f"Is {secret} reachable?")
        session.reply("It is.")
    session.work(messages // 2)
    return session.save(projects, age_days=age)


def write_codex_session(
    sessions: Path, number: int, *, messages: int = 40, filler: int = 0, age_days: float = 3
) -> Path:
    """A clean rollout of Codex."""
    source = random.Random(f"codex/{number}")
    started = time.time() - age_days * DAY_SECONDS - 137 * number
    thread = f"{source.getrandbits(128):032x}"
    lines: list[dict[str, Any]] = []
    words, prompt, block = max(12, filler // 6), 12_000, ""

    def add(kind: str, payload: dict[str, Any]) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%S.120Z", time.gmtime(started + 3 * len(lines)))
        lines.append({"timestamp": at, "ordinal": len(lines), "type": kind, "payload": payload})

    def make_text(count: int) -> str:
        nonlocal block
        block = block or " ".join(source.choices(WORDS, k=max(words, 40)))
        return f"{block[: count * 7]} {source.getrandbits(40)}"

    add("session_meta", {"session_id": thread, "id": thread, "cwd": f"/home/dev/service{number % 5}"})
    add("turn_context", {"model": CODEX_MODEL, "cwd": "/home/dev"})
    written = cached = 0
    total: dict[str, int] = {}
    while written < messages:
        content = [{"type": "input_text", "text": make_text(40)}]
        add(
            "response_item",
            {"type": "message", "id": f"msg_{source.getrandbits(64):x}", "role": "user", "content": content},
        )
        written += 1
        for step in range(8):
            call, output = f"call_{source.getrandbits(64):x}", make_text(words)
            said = [{"type": "output_text", "text": make_text(25)}]
            add(
                "response_item",
                {"type": "message", "id": f"msg_{source.getrandbits(64):x}", "role": "assistant", "content": said},
            )
            arguments = json.dumps({"cmd": f"rg part_{written}_{step} src"})
            names = {
                "type": "function_call",
                "id": f"fc_{source.getrandbits(64):x}",
                "name": "exec_command",
                "call_id": call,
            }
            add("response_item", {**names, "arguments": arguments})
            counts = {
                "input_tokens": prompt,
                "cached_input_tokens": cached,
                "output_tokens": 200,
                "total_tokens": prompt + 200,
            }
            add("token_usage_record", {"usage": counts})
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count
            info = {"total_token_usage": dict(total), "last_token_usage": counts, "model_context_window": 272_000}
            add("event_msg", {"type": "token_count", "info": info})
            cached, prompt = prompt, prompt + 250 + len(output) // 4
            text = f"Chunk ID: 1\nProcess exited with code 0\nOutput:\n{output}"
            add(
                "response_item",
                {
                    "type": "function_call_output",
                    "id": f"fco_{source.getrandbits(64):x}",
                    "call_id": call,
                    "output": text,
                },
            )
            written += 2
    day = time.strftime("%Y/%m/%d", time.gmtime(started))
    path = sessions / day / f"rollout-{thread}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    os.utime(path, (started, started))
    return path


def _start(number: int, kind: str, age_days: float) -> ClaudeSession:
    project = f"/home/dev/{kind.replace('_', '-')}{number}"
    started_at = time.time() - age_days * DAY_SECONDS
    session = ClaudeSession(number, project=project, started_at=started_at, seed=kind)
    session.work(12)
    return session


def plant(projects: Path, kind: str, number: int) -> str:
    """Writes a session with one waste of a kind; returns a text that the evidence must have."""
    age = 1.0 + number % 6
    session, evidence, name = _start(number, kind, age), "", ""
    match kind:
        case "full_window":
            session.fixed = 120_000 + 10_000 * number
            session.work(150)
            session.fixed = FIXED_TOKENS
            session.compact("The parts work.")
            evidence = "requests above 100k tokens"
        case "pause":
            session.step("Bash", {"command": "make report"}, session.text(60_000 + 2_000 * number))
            session.reply()
            session.wait(3_600 * (number + 1))
            session.ask("Now the other module.")
            session.reply(cached=0.0)
            evidence = "1 pause: "
        case "fixed_prompt":
            session = ClaudeSession(
                number, project=f"/home/dev/tools{number}", started_at=time.time() - age * DAY_SECONDS, seed=kind
            )
            session.model, session.fixed = "claude-opus-4-1", 61_000 + 1_000 * number
            session.work(24)
            evidence = f"{26 + number}k tokens"
        case "large_file":
            path, session.model = f"/home/dev/app/schema_{number}.sql", "claude-opus-4-1"
            session.step("Read", {"file_path": path}, session.text(5_000 + 100 * number))
            session.work(110)
            evidence = path
        case "cache_drop":
            session.step("Bash", {"command": "ls"}, session.text(4_000))
            session.reply(cached=0.0)
            evidence = "1 drop, $"
        case "expiring":
            age = 24.0 + number * 0.9
            evidence = f"{session.id}.jsonl"
        case "expensive_day":
            age = 40.0 + number
            session = ClaudeSession(
                number, project="/home/dev/spree", started_at=time.time() - age * DAY_SECONDS, seed=kind
            )
            session.model = "claude-opus-4-1"
            session.fixed = 25_000
            session.work(700 + 40 * number)
            evidence = time.strftime("%Y-%m-%d", time.gmtime(time.time() - age * DAY_SECONDS))
            age = 1.0
        case _:
            raise ValueError(kind)
    session.work(12)
    session.save(projects, age_days=age, name=name)
    return evidence


PLANTED_KINDS: tuple[str, ...] = (
    "full_window", "pause", "fixed_prompt", "large_file", "cache_drop", "expiring", "expensive_day",
)  # fmt: skip
