"""The readers of stored sessions that share nothing with the importers, and the comparison with what is stored."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from corpus_claude_code import read_claude_code  # noqa: E402
from corpus_codex import read_codex  # noqa: E402
from corpus_compare import compare  # noqa: E402
from corpus_facts import Facts, Tokens, digest_texts  # noqa: E402
from corpus_files import fetch, list_files, unpack  # noqa: E402
from corpus_pi import read_pi  # noqa: E402

SESSION = "11111111-2222-4333-8444-555555555555"


def write_lines(path: Path, lines: Sequence[dict[str, Any] | str]) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def claude(uuid: str, parent: str | None, kind: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"uuid": uuid, "parentUuid": parent, "type": kind, "sessionId": SESSION, "version": "2.1.9"}
    line |= {"timestamp": f"2026-01-01T10:00:{int(uuid, 16):02}.000Z", "isSidechain": False}
    if content is not None:
        line["message"] = {"role": kind, "content": content}
    return line | fields


def reply(
    uuid: str, parent: str, id_: str, *blocks: dict[str, Any], model: str = "m", output: int = 1, **usage: Any
) -> Any:
    line = claude(uuid, parent, "assistant", list(blocks), requestId=f"req {id_}")
    line["message"] |= {"id": id_, "model": model, "usage": {"input_tokens": 10, "output_tokens": output, **usage}}
    return line


def say(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def call(id_: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "Look", "input": {"at": id_}}


def result(id_: str, text: str = "seen") -> list[dict[str, str]]:
    return [{"type": "tool_result", "tool_use_id": id_, "content": text}]


def keys(facts: Facts) -> list[str]:
    return [item.key for item in facts.path]


def test_links_of_every_type_and_lost_ones_keep_one_session_on_one_path(tmp_path: Path):
    path = write_lines(
        tmp_path / "a.jsonl",
        [
            claude("1", None, "user", "paint the fence"),
            claude("2", "1", "progress"),
            reply("3", "2", "r1", call("c1")),
            reply("4", "3", "r1", call("c2"), output=7),
            # The result stands before the line of its call's successor, and the hook's parent was never written.
            claude("5", "3", "user", result("c1")),
            claude("6", "4", "user", result("c2")),
            claude("7", "0", "progress"),
            claude("8", "7", "user", "and the gate"),
        ],
    )
    facts = read_claude_code(path, set())
    assert keys(facts) == [digest_texts(["paint the fence"]), "c1", "c2", "c1", "c2", digest_texts(["and the gate"])]
    assert not facts.branches
    assert not facts.begins_in_middle
    assert facts.models == {"m": Tokens(1, 10, 7)}
    assert facts.count_replies() == 1


def test_a_prompt_that_was_typed_again_is_a_branch_and_a_compact_command_is_none(tmp_path: Path):
    path = write_lines(
        tmp_path / "a.jsonl",
        [
            claude("1", "0", "user", "go left"),
            claude("2", "0", "user", "go right"),
            reply("3", "2", "r1", say("right")),
            claude("4", "3", "user", "/compact"),
            claude("5", None, "system", subtype="compact_boundary", logicalParentUuid="3", compactMetadata={}),
            claude("6", "5", "user", "the story so far", isCompactSummary=True),
            claude("7", "6", "user", "<command-name>/compact</command-name>"),
            claude("8", "7", "user", "on we go"),
        ],
    )
    lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(claude("0", None, "progress")), *lines]) + "\n")
    facts = read_claude_code(path, set())
    assert [[item.key for item in branch] for branch in facts.branches] == [[digest_texts(["go left"])]]
    assert [(each.place, each.kind, each.digest) for each in facts.compactions] == [
        (1, "summary", digest_texts(["the story so far"]))
    ]
    assert [item.by for item in facts.path if item.kind == "user"] == ["person", "person", "harness", "person"]


def test_prompts_of_the_queue_and_two_objects_on_a_line_are_read(tmp_path: Path):
    first = json.dumps(claude("1", None, "user", "mow the lawn"))
    path = write_lines(
        tmp_path / "a.jsonl",
        [
            first + json.dumps(reply("2", "1", "r1", call("c1"))),
            {"type": "queue-operation", "operation": "enqueue", "content": "mind the roses"},
            {"type": "queue-operation", "operation": "enqueue", "content": "forget it"},
            {"type": "queue-operation", "operation": "popAll", "content": "forget it"},
            {"type": "queue-operation", "operation": "remove", "timestamp": "2026-01-01T10:00:02.500Z"},
            claude("3", "2", "user", result("c1")),
            reply("4", "3", "r2", say("done")),
        ],
    )
    facts = read_claude_code(path, set())
    texts = [digest_texts([text]) for text in ("mow the lawn", "mind the roses", "done")]
    assert keys(facts) == [texts[0], "c1", "c1", texts[1], texts[2]]


def test_requests_count_once_over_files_and_an_advisers_under_its_model(tmp_path: Path):
    advice = {"type": "advisor_message", "model": "wise", "input_tokens": 5, "output_tokens": 2}
    lines = [
        claude("1", None, "user", "hello"),
        reply("2", "1", "r1", say("hi"), output=3, cache_read_input_tokens=4, iterations=[advice]),
        reply("3", "2", "r2", say("not sent"), model="<synthetic>"),
    ]
    counted: set[object] = set()
    first = read_claude_code(write_lines(tmp_path / "a.jsonl", lines), counted)
    second = read_claude_code(write_lines(tmp_path / "b.jsonl", lines), counted)
    assert first.models == {"m": Tokens(1, 14, 3, 4), "wise": Tokens(1, 5, 2)}
    assert (second.models, second.shared_requests) == ({}, 1)


def codex(seconds: float, kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-01-01T10:00:{seconds:06.3f}Z", "type": kind, "payload": payload}


def usage(seconds: float, total: int) -> dict[str, Any]:
    counts = {"input_tokens": 10, "output_tokens": 1}
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": counts}
    return codex(seconds, "event_msg", type="token_count", info=info)


def item(seconds: float, role: str, text: str) -> dict[str, Any]:
    return codex(seconds, "response_item", type="message", role=role, content=[{"type": f"{role}_text", "text": text}])


def test_a_copied_parent_is_no_part_of_a_sub_agent_and_usage_after_a_result_is_counted(tmp_path: Path):
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "parent"}}}
    path = write_lines(
        tmp_path / "rollout.jsonl",
        [
            codex(1, "session_meta", id="child", source=spawned, forked_from_id="parent", cli_version="0.118.0"),
            codex(1.01, "session_meta", id="parent", source="cli"),
            item(1.01, "user", "build a boat"),
            item(1.01, "assistant", "building"),
            usage(1.01, 11),
            codex(1.02, "event_msg", type="task_started"),
            codex(2, "turn_context", model="m"),
            item(2.1, "user", "check the hull"),
            codex(2.1, "event_msg", type="user_message", message="check the hull"),
            codex(3, "response_item", type="function_call", call_id="c1", name="look", arguments='{"at": 1}'),
            codex(4, "response_item", type="function_call_output", call_id="c1", output="wet"),
            usage(4.1, 22),
            usage(4.2, 22),
            codex(5, "compacted", message="", replacement_history=[item(0, "user", "check the hull")["payload"]]),
            item(6, "assistant", "no holes"),
        ],
    )
    facts = read_codex(path)
    assert (facts.parent, facts.copied_lines, facts.models) == ("parent", 5, {"m": Tokens(1, 10, 1)})
    assert [(each.kind, each.by) for each in facts.path] == [
        ("user", "harness"),
        ("call", ""),
        ("result", ""),
        ("text", ""),
    ]
    assert [(each.place, each.kind, each.kept) for each in facts.compactions] == [
        (1, "opaque", (digest_texts(["check the hull"]),))
    ]


def test_the_first_version_of_pi_names_what_it_keeps_by_number(tmp_path: Path):
    def said(role: str, text: str) -> dict[str, Any]:
        message = {"role": role, "content": [say(text)], "timestamp": 1_767_261_600_000}
        return {"type": "message", "timestamp": "2026-01-01T10:00:00.000Z", "message": message}

    ran = {"role": "bashExecution", "command": "ls", "output": "nest", "exitCode": 2}
    lines = [
        {"type": "session", "id": "p", "timestamp": "2026-01-01T10:00:00.000Z", "branchedFrom": "/x/2026_parent.jsonl"},
        said("user", "count the birds"),
        said("assistant", "three"),
        {"type": "message", "timestamp": "2026-01-01T10:00:01.000Z", "message": ran},
        {"type": "compaction", "timestamp": "2026-01-01T10:00:02.000Z", "summary": "birds", "firstKeptEntryIndex": 2},
    ]
    facts = read_pi(write_lines(tmp_path / "p.jsonl", lines), set())
    command = digest_texts(["Ran `ls`\n```\nnest\n```\n\nCommand exited with code 2"])
    assert facts.parent == "parent"
    assert keys(facts)[-1] == command
    assert [each.kept for each in facts.compactions] == [tuple(sorted([digest_texts(["three"]), command]))]


def test_each_difference_has_its_class(tmp_path: Path):
    lines = [
        claude("1", None, "user", "one"),
        reply("2", "1", "r1", say("two"), call("c1")),
        claude("3", "2", "user", result("c1")),
        claude("4", "3", "user", "five"),
    ]
    path = write_lines(tmp_path / "a.jsonl", lines)

    def compare_with(**changes: Any) -> set[str]:
        found = read_claude_code(path, set())
        for name, value in changes.items():
            setattr(found, name, value(getattr(found, name)))
        return {each.kind for each in compare(read_claude_code(path, set()), found)}

    assert compare_with() == set()
    assert compare(read_claude_code(path, set()), None)[0].kind == "not imported"
    assert compare_with(path=lambda items: items[:-1]) == {"messages lost"}
    assert compare_with(path=lambda items: [*items, items[0]]) == {"messages extra"}
    assert compare_with(path=lambda items: [items[-1], *items[:-1]]) == {"order"}
    assert compare_with(path=lambda items: [*items[:2], items[3], items[2], items[4]]) == {"order", "pairs"}
    assert compare_with(
        path=lambda items: items[:-1], branches=lambda _: [[read_claude_code(path, set()).path[-1]]]
    ) == {"branches"}
    assert compare_with(path=lambda items: [items[0]._replace(by="harness"), *items[1:]]) == {"authors"}
    assert compare_with(path=lambda items: [each._replace(digest="x" * bool(each.digest)) for each in items]) == {
        "texts"
    }
    assert compare_with(path=lambda items: [each._replace(reply=each.reply and each.kind) for each in items]) == {
        "replies"
    }
    assert compare_with(requests=lambda each: each * 2) == {"requests", "tokens"}
    assert compare_with(last=lambda at: at + 5) == {"times"}
    assert compare_with(begins_in_middle=lambda _: True) == {"beginning"}
    assert compare_with(parent=lambda _: "another") == {"parent"}


def make_repository(folder: Path, files: dict[str, bytes]) -> dict[str, str]:
    """A bare repository with these files in a commit. Returns the id of each one's content."""

    def git(*arguments: str, data: bytes | None = None) -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().strip()

    folder.mkdir(parents=True)
    git("init", "--quiet", "--bare")
    blobs = {name: git("hash-object", "-w", "--stdin", data=data) for name, data in files.items()}
    tree = git("mktree", data="".join(f"100644 blob {blob}\t{name}\n" for name, blob in blobs.items()).encode())
    git("update-ref", "refs/heads/main", git("commit-tree", tree, "-m", "sessions"))
    return blobs


@pytest.fixture
def git_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address and folder of a Git server that sends what is below the folder."""
    root = tmp_path / "server"
    root.mkdir()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    command = ["git", "daemon", "--export-all", "--reuseaddr", f"--base-path={root}", f"--port={port}"]
    process = subprocess.Popen(
        [*command, "--listen=127.0.0.1", str(root)], stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        wait_until_listening(port)
        yield f"git://127.0.0.1:{port}", root
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


def wait_until_listening(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("the Git server does not listen")


def test_sessions_are_fetched_by_the_ids_of_their_content_and_masked(tmp_path: Path, git_server: tuple[str, Path]):
    address, root = git_server
    token = "npm_" + "a1B2" * 9
    said = f"ask jo.doe@mail.test or noreply@mail.test with {token} at https://jo:s3cret@host.test/x".encode()
    blobs = make_repository(root / "owner" / "sessions.git", {"one.jsonl": said, "two.jsonl": b"plain"})
    masked = b"ask person-%b@example.org or noreply@mail.test with MASKED-%b at MASKED-%b/x" % tuple(
        sha256(text).hexdigest()[:length].encode()
        for text, length in ((b"jo.doe@mail.test", 6), (token.encode(), 10), (b"https://jo:s3cret@host.test", 10))
    )
    entry = {"set": "some", "program": "codex", "repo": "owner/sessions"}
    index = write_lines(
        tmp_path / "index.jsonl",
        [
            entry | {"file": "a.jsonl", "blob": blobs["one.jsonl"], "sha256": sha256(masked).hexdigest()},
            entry | {"file": "b.jsonl", "blob": blobs["two.jsonl"], "sha256": "another"},
            entry | {"file": "c.jsonl", "blob": "0" * 39 + "1", "sha256": "gone"},
        ],
    )
    equal, others = fetch(tmp_path / "fetched", address, index)
    assert equal == 1
    assert others == [
        "b.jsonl: another digest after it was masked",
        "c.jsonl: not found in owner/sessions",
    ]
    assert (tmp_path / "fetched" / "some" / "a.jsonl").read_bytes() == masked
    assert [each.name for each in list_files([tmp_path / "fetched"], ["codex"])] == ["a.jsonl", "b.jsonl"]


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd packs the archive")
def test_sessions_of_an_archive_are_unpacked(tmp_path: Path):
    folder = tmp_path / "archived"
    folder.mkdir()
    (folder / "full").mkdir()
    for name in ("0-a.jsonl", "1-b.jsonl"):
        (folder / "full" / name).write_text(name)
    subprocess.run("tar c full | zstd -q -o sessions.tar.zst", shell=True, cwd=folder, check=True)
    write_lines(folder / "index.jsonl", [{"file": name, "program": "pi"} for name in ("0-a.jsonl", "1-b.jsonl")])
    files = list_files([folder], ["pi"])
    assert unpack(files[1:], tmp_path)["1-b.jsonl"].read_text() == "1-b.jsonl"
    assert not (tmp_path / "0-a.jsonl").exists()
