"""Every source through the writer: imported once, verified, exported and imported again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from agents import SQLiteSession

from importers import test_claude, test_cursor, test_librechat, test_open_webui, test_openai_agents, test_openai_jsonl
from importers.described_samples import DESCRIBED
from importers.source_counts import COUNTERS
from importers.transcript_files import dump_store, import_path, read_texts
from infra.export_samples import (
    PNG,
    load_llm_log,
    make_chatgpt_conversation,
    make_chatgpt_message,
    write_json,
    write_zip,
)
from quire.log.imports import make_conversation_id
from quire.model import ImagePart
from quire.sources.registry import SOURCES
from quire.store import SqlStore


def write_chatgpt(folder: Path) -> Path:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-AAA"}
    nodes = {
        "root": (None, None),
        "q": (
            "root",
            make_chatgpt_message("user", content={"content_type": "multimodal_text", "parts": [image, "What?"]}),
        ),
        "a1": ("q", make_chatgpt_message("assistant", "First")),
        "a2": ("q", make_chatgpt_message("assistant", "Second", metadata={"model_slug": "gpt-5"})),
        "call": ("a2", make_chatgpt_message("assistant", '{"q": 1}', recipient="web")),
        "hit": ("call", make_chatgpt_message("tool", "found")),
        "end": ("hit", make_chatgpt_message("assistant", "Done")),
    }
    files: dict[str, Any] = {"conversations.json": [make_chatgpt_conversation("c", nodes)], "file-AAA-x.png": PNG}
    return write_zip(folder / "export.zip", files)


def write_agents_session(folder: Path) -> Path:
    path = folder / "sessions.db"
    session = SQLiteSession("user-1", path)
    asyncio.run(session.add_items(cast(Any, test_openai_agents.TURN)))
    session.close()
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "chatgpt": write_chatgpt,
    "claude": lambda folder: write_json(
        folder / "conversations.json",
        [
            test_claude.make_conversation(
                test_claude.make_message("q", "human", "Hello", files=[{"file_name": "a.png"}]),
                test_claude.make_message("a1", "assistant", "Hi", parent="q"),
                test_claude.make_message(
                    "a2",
                    "assistant",
                    "Hello!",
                    parent="q",
                    content=[{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Hello!"}],
                ),
            )
        ],
    ),
    "librechat": lambda folder: write_json(
        folder / "c.json", test_librechat.make_conversation(test_librechat.MESSAGES)
    ),
    "open-webui": lambda folder: write_json(folder / "chats.json", [test_open_webui.TREE]),
    "cursor": lambda folder: test_cursor.write_transcript(folder),
    "openai-jsonl": lambda folder: test_openai_jsonl.write_lines(
        folder / "a.jsonl", {"messages": test_openai_jsonl.MESSAGES}, {"messages": test_openai_jsonl.MESSAGES}
    ),
    "openai-agents": write_agents_session,
    "llm": lambda folder: load_llm_log("llm_0_36.sql", folder / "logs.db"),
    "llm (old)": lambda folder: load_llm_log("llm_0_30.sql", folder / "old.db"),
}


@pytest.fixture(params=sorted(WRITERS))
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Name of a source and a file of it."""
    return request.param.partition(" ")[0], WRITERS[request.param](tmp_path)


def test_every_source_has_a_sample():
    elsewhere = {"claude-code", "codex", *COUNTERS, *DESCRIBED}
    assert {name.partition(" ")[0] for name in (*WRITERS, *elsewhere)} == set(SOURCES)


async def test_an_import_is_verified_and_a_second_one_adds_nothing(store: SqlStore, sample: tuple[str, Path]):
    source, path = sample
    first = await import_path(store, source, path)
    assert (first.error_count, first.messages > 0) == (0, True)
    for record in await store.list_conversations():
        assert await store.verify_conversation(record.id) == []
        assert record.origin is not None
        assert record.origin.client == source
    before = await dump_store(store)
    second = await import_path(store, source, path)
    assert (second.conversations, second.messages) == (0, 0)
    assert second.known_messages >= first.messages
    assert await dump_store(store) == before


async def test_export_and_import_give_the_same_bytes(store: SqlStore, sample: tuple[str, Path]):
    source, path = sample
    await import_path(store, source, path)
    exported = await dump_store(store)
    other = store.for_tenant("other")
    for lines in exported.values():
        await other.import_conversation(lines)
    assert await dump_store(other) == exported
    again = await import_path(other, source, path)
    assert again.messages == 0
    assert await dump_store(other) == exported


async def test_the_current_branch_is_the_main_branch(store: SqlStore, tmp_path: Path):
    await import_path(store, "chatgpt", write_chatgpt(tmp_path))
    conversation = make_conversation_id("chatgpt", "c")
    assert await read_texts(store, conversation) == ["What?", "Second", "web", "found", "Done"]
    assert len(await store.list_branches(conversation)) == 2
    first = (await store.read_range(conversation, branch=0, kinds=["message"]))[0]
    image = first.message.parts[0]
    assert isinstance(image, ImagePart)
    assert image.blob is not None
    assert (await store.get_blob(image.blob)).data == PNG


def test_the_documentation_says_what_each_program_does_not_store():
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {row[1].strip(): row[-2].strip() for row in rows}
    expected = {
        f"`{name}`" + (" (experimental)" if source.is_experimental else ""): ", ".join(source.not_stored)
        for name, source in SOURCES.items()
    }
    assert listed == expected
