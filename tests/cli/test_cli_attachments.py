"""Images and PDFs attached in the terminal: on the wire of that very request in both wire formats, and replayed."""

import asyncio
import os
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from chat_harness import QUIRE_PROGRAM, make_test_console, read_session_output

from fake_upstream import reply_in_wire_format, run_fake_upstream
from quire.cli.chat.completion import CompletionSources, suggest
from quire.cli.chat.runtime import MAX_ATTACHMENT_BYTES, ChatRuntime, load_attachment
from quire.cli.chat.screen import Screen
from quire.cli.chat.session import ChatSession
from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import DocumentNotFound, InvalidRequest, ModelRequestRejected
from quire.llm import get_model
from quire.model import FilePart, ImagePart
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\x00\x00\x00"
PDF = b"%PDF-1.4 /Type /Pages /Type /Page "
MODELS = ("openai:gpt-4o", "anthropic:claude-x")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "the mill.png"
    path.write_bytes(PNG)
    return path


def list_image_data(body: dict[str, Any]) -> list[str]:
    """Base64 data of the images of the last message, in either wire format."""
    pieces = body["messages"][-1]["content"]
    return [
        piece["image_url"]["url"].partition("base64,")[2] if piece["type"] == "image_url" else piece["source"]["data"]
        for piece in pieces
        if piece["type"] in ("image_url", "image")
    ]


def make_engine(store: SqlStore, model: str) -> Engine:
    return Engine(store, EngineConfig.create(Settings.model_validate({"model": model})))


@pytest.mark.parametrize("model", MODELS)
async def test_a_picture_attached_in_the_chat_is_in_the_request_of_the_next_message(
    store: SqlStore, picture: Path, model: str
):
    async with run_fake_upstream(reply_in_wire_format("A mill.")) as upstream:
        engine = make_engine(store, model)
        runtime = ChatRuntime(
            engine,
            await engine.conversation("c"),
            make_model=lambda settings: get_model(settings.model, base_url=upstream.url, api_key="k"),
        )
        session = ChatSession(runtime, Screen(make_test_console()))
        await session.handle_line(f"/attach {picture}")
        await session.handle_line("What is this?")
        await session.handle_line("And that?")
    first, second = upstream.bodies
    assert list_image_data(first) == [b64encode(PNG).decode()]
    assert "image" not in str(second["messages"][-1])
    assert "the mill.png" in read_session_output(session)
    later = await make_engine(store, model).conversation("c")
    assert (await later.replay(2)).mismatch is None
    assert (await later.replay(4)).mismatch is None


@pytest.mark.parametrize("model", MODELS)
async def test_a_picture_of_the_ask_command_is_in_its_request(tmp_path: Path, picture: Path, model: str):
    url = f"sqlite:///{tmp_path}/q.db"
    async with run_fake_upstream(reply_in_wire_format("A mill.")) as upstream:
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "QUIRE_MODEL": model, "QUIRE_BASE_URL": upstream.url,
            "QUIRE_DATABASE_URL": url, "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            QUIRE_PROGRAM, "ask", "What is this?", "c", "-a", picture, "--attach", picture,
            env=environment, cwd=tmp_path, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
    assert (process.returncode, output) == (0, b"A mill.\n")
    assert list_image_data(upstream.bodies[0]) == [b64encode(PNG).decode()] * 2
    async with SqlStore.open(url) as store:
        assert (await Conversation(make_engine(store, model), "c").replay(2)).mismatch is None


async def test_attachments_stay_until_a_message_is_recorded(store: SqlStore, picture: Path):
    engine, has_key = make_engine(store, "gpt-4o"), False

    def make_model(settings: Settings) -> ScriptedModel:
        if not has_key:
            raise ModelRequestRejected("no key")
        return ScriptedModel("A mill.")

    session = ChatSession(
        ChatRuntime(engine, await engine.conversation("c"), make_model=make_model), Screen(make_test_console())
    )
    await session.handle_line(f"/attach {picture}")
    await session.handle_line("What is this?")
    has_key = True
    await session.handle_line("/attach")
    assert "Attached to the next message: the mill.png" in read_session_output(session)
    await session.handle_line("What is this?")
    [question, _] = await session.runtime.conversation.messages()
    assert [part.type for part in question.message.parts] == ["text", "image"]
    await session.handle_line(f"/attach {picture}")
    await session.handle_line("/detach")
    await session.handle_line("/attach")
    assert read_session_output(session).rstrip().splitlines()[-1].startswith("Nothing is attached")


async def test_the_kind_of_a_file_is_read_from_its_content(store: SqlStore, tmp_path: Path):
    (tmp_path / "picture.txt").write_bytes(PNG)
    (tmp_path / "scan.bin").write_bytes(PDF)
    (tmp_path / "fake.png").write_text("plain text")
    image = await load_attachment(tmp_path / "picture.txt", store)
    assert isinstance(image.part, ImagePart)
    assert image.part.media_type == "image/png"
    scan = await load_attachment(tmp_path / "scan.bin", store)
    assert isinstance(scan.part, FilePart)
    assert (scan.part.media_type, scan.part.name) == ("application/pdf", "scan.bin")
    with pytest.raises(InvalidRequest, match=r"neither an image.*nor a PDF"):
        await load_attachment(tmp_path / "fake.png", store)
    with pytest.raises(DocumentNotFound, match=r"missing\.png"):
        await load_attachment(tmp_path / "missing.png", store)
    with pytest.raises(InvalidRequest, match="not a file"):
        await load_attachment(tmp_path, store)


async def test_a_file_above_the_maximum_is_refused(store: SqlStore, tmp_path: Path):
    path = tmp_path / "large.png"
    path.write_bytes(PNG.ljust(MAX_ATTACHMENT_BYTES, b"\0"))
    assert (await load_attachment(path, store)).name == "large.png"
    path.write_bytes(PNG.ljust(MAX_ATTACHMENT_BYTES + 1, b"\0"))
    with pytest.raises(InvalidRequest, match="20 MB"):
        await load_attachment(path, store)


def test_attach_completes_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mill.png").touch()
    monkeypatch.chdir(tmp_path)
    assert [each.text for each in suggest("/attach mi", CompletionSources())] == ["mill.png"]
