"""The blocking face agrees with the asynchronous one; the front door is small, quick and needs no network."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import quire
import quire.sync
from quire import engine


@pytest.mark.parametrize("name", ["Engine", "Conversation"])
def test_both_faces_have_the_same_methods_with_the_same_arguments(name: str):
    ours, theirs = getattr(quire.sync, name), getattr(engine, name)
    for method, function in inspect.getmembers(ours, inspect.isfunction):
        if method.startswith("_"):
            continue
        expected = inspect.signature(getattr(theirs, method))
        assert list(inspect.signature(function).parameters.values()) == list(expected.parameters.values()), method
    public = {
        method for method, function in inspect.getmembers(theirs, inspect.isfunction) if not method.startswith("_")
    }
    missing = public - set(dir(ours))
    assert missing <= {
        "calibration",
        "calibrated",
        "start",
        "later",
        "settle",
        "tell",
        "cost",
        "check_spending",
    }


def test_both_faces_give_the_same_request(tmp_path: Path):
    script = """
import asyncio, sys, quire, quire.sync
async def slowly(url):
    async with quire.open(url, model="gpt-4o", instructions="x") as engine:
        conversation = await engine.conversation("c")
        await conversation.prepare("hello")
        await conversation.record("hi")
        return (await conversation.prepare("again")).to_openai()
def blocking(url):
    with quire.sync.open(url, model="gpt-4o", instructions="x") as engine:
        conversation = engine.conversation("c")
        conversation.prepare("hello")
        reply = conversation.record("hi")
        assert conversation.replay(reply.seq).matches
        return conversation.prepare("again").to_openai()
assert asyncio.run(slowly(sys.argv[1])) == blocking(sys.argv[2])
"""
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    subprocess.run([sys.executable, "-c", script, *urls], check=True)


def test_the_blocking_face_does_all_that_the_other_does(tmp_path: Path):
    with quire.sync.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o") as opened:
        conversation = opened.conversation("c")
        conversation.append("the code is 0451")
        conversation.prepare()
        first = conversation.record("noted")
        conversation.pin(1)
        conversation.unpin(1)
        opened.use(strategy="discard")
        conversation.prepare("what is it?")
        second = conversation.record("0451")
        assert conversation.usage().status == "ok"
        assert conversation.manifest(second.seq).policy.strategy == "discard"
        assert conversation.diff(first.seq, second.seq)
        assert conversation.why(1, reply=second.seq).included
        other = conversation.fork(2)
        assert (other.id, other.branch, len(other.messages())) == ("c", 1, 2)
        with pytest.raises(quire.QuireError):
            conversation.manifest(99)


def test_the_front_door_is_pinned():
    assert sorted(quire.__all__) == sorted(dir_of_public())
    for name in quire.__all__:
        assert getattr(quire, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        quire.nonsense  # noqa: B018


def dir_of_public() -> list[str]:
    return [
        "Compaction", "ContextOverflow", "Conversation", "Decision", "Document", "Engine", "Entry", "FilePart",
        "ImagePart", "Manifest", "Message", "QuireError", "Request", "Settings", "Strategy", "TextPart", "ThinkingPart",
        "ToolCallPart", "ToolDefinition", "ToolResultPart", "Usage", "open", "register_strategy",
    ]  # fmt: skip


def test_importing_quire_loads_nothing_heavy():
    code = "import quire, sys; print([m for m in ('sqlalchemy', 'pydantic', 'alembic', 'splintr') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_everything_but_sending_works_without_a_network(tmp_path: Path):
    script = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network here")
class Closed(socket.socket):
    connect = connect_ex = bind = refuse
import asyncio
loop = asyncio.new_event_loop()
socket.socket = Closed
socket.create_connection = socket.getaddrinfo = refuse
import quire
async def main():
    async with quire.open(sys.argv[1], model="gpt-4o", context_limit=1_000) as engine:
        conversation = await engine.conversation("c")
        for turn in range(20):
            request = await conversation.prepare("why " * 40)
            assert request.manifest.exact and request.to_openai() and request.to_anthropic()
            reply = await conversation.record("so " * 40)
        assert (await conversation.replay(reply.seq)).matches
loop.run_until_complete(main())
"""
    subprocess.run([sys.executable, "-c", script, f"sqlite:///{tmp_path}/quire.db"], check=True)


def test_a_users_own_strategy():
    class Keep:
        name = "keep-two"
        summarizes = False
        recalls = False
        shares = {"system": 0.5}  # noqa: RUF012

        def cut(self, batches: object, *, legal: list[int], room: int, policy: object) -> int:
            return legal[-1]

    quire.register_strategy(Keep())
    with quire.sync.open("sqlite://", model="gpt-4o", context_limit=1_000, strategy="keep-two") as opened:
        conversation = opened.conversation()
        for _ in range(30):
            request = conversation.prepare("why " * 30)
            conversation.record("so " * 30)
        assert request.manifest.policy.strategy == "keep-two"
        assert request.tokens <= 488
