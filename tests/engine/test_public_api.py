"""The synchronous API matches the asynchronous one; the public API is small, quick to import and needs no network."""

import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FunctionType

import pytest

import quire
import quire.events
import quire.sync
import quire.types
from quire import Message, ToolCallPart, engine
from quire.errors import InvalidRequest

OPTIONAL_WHEN_BLOCKING = {("record", "request"), ("record_question", "request"), ("run_tool", "request")}
"""Parameters that the blocking API takes from the last prepared request."""

PLUGIN_PROTOCOLS = (quire.types.Embedder, quire.types.Model)
"""Protocols that applications implement, besides `quire.Strategy`."""


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [(quire.sync.SyncEngine, engine.Engine), (quire.sync.SyncConversation, engine.Conversation)],
)
def test_both_apis_have_the_same_methods_with_the_same_arguments(blocking: type, asynchronous: type):
    for method, function in inspect.getmembers(blocking, inspect.isfunction):
        if method.startswith("_"):
            continue
        expected = inspect.signature(getattr(asynchronous, method)).parameters
        parameters = dict(inspect.signature(function).parameters)
        if (method, "request") in OPTIONAL_WHEN_BLOCKING:
            parameters["request"] = expected["request"]
        assert list(parameters.values()) == list(expected.values()), method
    public = {
        method
        for method, function in inspect.getmembers(asynchronous, inspect.isfunction)
        if not method.startswith("_")
    }
    assert public <= set(dir(blocking))


def test_both_apis_give_the_same_request(tmp_path: Path):
    script = """
import asyncio, sys, quire, quire.sync
async def run_async(url):
    async with quire.open(url, model="gpt-4o", instructions="x") as engine:
        conversation = await engine.conversation("c")
        request = await conversation.prepare("hello")
        await conversation.record("hi", request=request)
        return (await conversation.prepare("again")).to_chat()
def run_blocking(url):
    with quire.sync.open(url, model="gpt-4o", instructions="x") as engine:
        conversation = engine.conversation("c")
        conversation.prepare("hello")
        reply = conversation.record("hi")
        assert conversation.replay(reply.seq).matches
        return conversation.prepare("again").to_chat()
assert asyncio.run(run_async(sys.argv[1])) == run_blocking(sys.argv[2])
"""
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    subprocess.run([sys.executable, "-c", script, *urls], check=True)


def test_the_synchronous_api_does_all_that_the_other_does(tmp_path: Path):
    with quire.sync.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o") as opened:
        conversation = opened.conversation("c")
        conversation.append("the code is 0451")
        conversation.prepare()
        first = conversation.record("noted")
        conversation.pin(1)
        conversation.unpin(1)
        conversation.set_priority(1, 9)
        conversation = opened.with_changes(strategy="discard").conversation("c")
        conversation.prepare("what is it?")
        second = conversation.record("0451")
        assert conversation.usage().status == "ok"
        assert conversation.manifest(second.seq).policy.strategy == "discard"
        assert conversation.diff(first.seq, second.seq)
        assert conversation.why(1, reply_seq=second.seq).included
        other = conversation.fork(2)
        assert (other.id, other.branch, len(other.messages())) == ("c", 1, 2)
        [hit] = opened.search("code", where=quire.MessageFilter(role="user")).messages
        assert (hit.conversation.id, hit.entry.seq) == ("c", 1)
        assert conversation.search("code").messages == [hit]
        assert opened.conversation("d").search("code").messages == []
        with pytest.raises(quire.QuireError):
            conversation.manifest(99)


def test_the_synchronous_api_remembers_the_last_request_and_what_its_tools_read(tmp_path: Path):
    (tmp_path / "Mill.md").write_text("# Mill\n\nA mill grinds grain.\n")
    with quire.sync.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o", vault=tmp_path) as opened:
        conversation = opened.conversation("c")
        with pytest.raises(InvalidRequest, match="prepare"):
            conversation.record("too early")
        conversation.prepare("what is in the note?")
        call = ToolCallPart(id="1", name="read_document", arguments='{"path": "Mill.md"}')
        conversation.record(Message(role="assistant", parts=(call,)))
        conversation.append(conversation.run_tool(call).message)
        conversation.prepare()
        reply = conversation.record("grain")
        assert [each.path for each in reply.metadata.references or ()] == ["Mill.md"]
        conversation.prepare("thanks")
        assert conversation.record("welcome").metadata.references is None


def test_the_public_names_are_pinned():
    assert sorted(quire.__all__) == sorted(public_names())
    for name in quire.__all__:
        assert getattr(quire, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        quire.nonsense  # noqa: B018


def test_every_type_in_a_public_signature_can_be_imported_from_a_public_module():
    exported = {*quire.__all__, *quire.types.__all__, *quire.events.__all__, "SyncConversation", "SyncEngine"}
    owners = [getattr(quire, name) for name in quire.__all__]
    owners += [quire.sync.open, quire.sync.SyncEngine, quire.sync.SyncConversation, *PLUGIN_PROTOCOLS]
    unknown = {
        f"{function.__qualname__}: {name}"
        for owner in owners
        for function in list_public_functions(owner)
        for name in list_annotated_types(function)
        if name not in exported
    }
    assert unknown == set()


def test_the_modules_of_types_export_what_they_import():
    for module in (quire.types, quire.events):
        assert sorted(module.__all__) == module.__all__ == [name for name in dir(module) if not name.startswith("_")]


def list_public_functions(owner: object) -> list[FunctionType]:
    """A function itself, or the public methods and properties of a class."""
    if isinstance(owner, FunctionType):
        return [inspect.unwrap(owner)]
    if not isinstance(owner, type):
        return []
    members = [inspect.getattr_static(owner, name) for name in dir(owner) if not name.startswith("_")]
    functions = [getattr(each, "fget", None) or getattr(each, "__func__", None) or each for each in members]
    return [each for each in functions if isinstance(each, FunctionType) and each.__module__.startswith("quire.")]


def list_annotated_types(function: FunctionType) -> set[str]:
    """Names of the types of Quire in a signature, as it is written: names that its module defines, or imports from
    the package."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = definition.args
    annotated = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [each.annotation for each in annotated if each is not None] + [definition.returns]
    names: set[str] = set()
    for annotation in filter(None, annotations):
        quoted = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
        parsed = ast.parse(annotation.value) if quoted else annotation
        names.update(node.id for node in ast.walk(parsed) if isinstance(node, ast.Name))
    module = ast.parse(inspect.getsource(inspect.getmodule(function)))
    foreign = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom) and not ast.unparse(node).startswith("from quire")
        for alias in node.names
    }
    return names - foreign - set(dir(builtins))


def public_names() -> list[str]:
    return [
        "Compaction", "ContextOverflow", "Conversation", "Decision", "Deny", "Document", "Engine", "Entry", "FilePart",
        "ImagePart", "Manifest", "Message", "MessageFilter", "QuireError", "Request", "Settings", "Strategy",
        "TextPart", "ThinkingPart", "ToolCallPart", "ToolDefinition", "ToolResultPart", "TurnResult", "Usage", "open",
        "register_strategy", "tool",
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
            assert request.manifest.exact and request.to_chat() and request.to_messages()
            reply = await conversation.record("so " * 40, request=request)
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
        priority_shares = {}  # noqa: RUF012

        def choose_cut(self, batches: object, *, legal_cuts: list[int], max_tokens: int, policy: object) -> int:
            return legal_cuts[-1]

    quire.register_strategy(Keep())
    with quire.sync.open("sqlite://", model="gpt-4o", context_limit=1_000, strategy="keep-two") as opened:
        conversation = opened.conversation()
        for _ in range(30):
            request = conversation.prepare("why " * 30)
            conversation.record("so " * 30)
        assert request.manifest.policy.strategy == "keep-two"
        assert request.tokens <= 488
