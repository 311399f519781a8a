"""Reading logs of simonw/llm, which its versions 0.30 and 0.36 wrote (data/make_llm_logs.py)."""

import sqlite3
from pathlib import Path

import pytest

from infra.export_samples import load_llm_log, read_source
from quire.importers.llm_logs import LlmSource, find_user_directory
from quire.model import ImagePart

SOURCE = LlmSource()
TRANSLATION = [
    "You translate.",
    "Say hello in French",
    "Bonjour",
    "Again",
    "Encore bonjour",
    "What is this? | [image]",
    "A red dot",
    "A long text about foxes.\nSummarise",
    "Summarised",
]
WEATHER = [
    ("user", "Weather in Oslo?"),
    ("assistant", "read_weather({city})"),
    ("tool", "-> Rain in Oslo"),
    ("assistant", "read_weather({city})"),
    ("tool", "-> Error: no such city"),
    ("assistant", "It rains in Oslo."),
]


@pytest.fixture(params=["llm_0_30.sql", "llm_0_36.sql"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return load_llm_log(request.param, tmp_path / "logs.db")


def without_thinking(text: str) -> str:
    return text.removeprefix("<Think about it. > | ")


def test_a_conversation(log: Path):
    read = read_source(SOURCE, log)
    assert read.errors == []
    conversation, messages = read.conversations[0]
    assert conversation.title == "Say hello in French"
    assert conversation.origin.client == "llm"
    main = messages[: len(TRANSLATION)]
    assert [without_thinking(text) for *_, text in read.conversations[0].outline()][: len(TRANSLATION)] == TRANSLATION
    assert [each.message.role for each in main] == ["system", *["user", "assistant"] * 4]
    assert [each.parent for each in main] == [None, *[each.id for each in main[:-1]]]
    usage = main[2].usage
    assert usage is not None
    assert (usage.model, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (
        "scripted-2026-01-01",
        12,
        5,
        3,
    )
    assert all(each.at for each in main)
    image = main[5].message.parts[-1]
    assert isinstance(image, ImagePart)
    assert (image.url or "").startswith("data:image/png;base64,iVBOR")


def test_tool_calls(log: Path):
    _, weather, alone = read_source(SOURCE, log).conversations
    outline = [
        (role, without_thinking(text).split("(")[0] + "({city})" if "(" in text else without_thinking(text))
        for _, _, role, text in weather.outline()
    ]
    assert outline == WEATHER
    assert [result.is_error for each in weather.messages for result in each.message.tool_results] == [False, True]
    assert [without_thinking(text) for *_, text in alone.outline()] == ["One question, and no conversation", "Alone"]


def test_a_fork_is_a_branch_of_its_thread(tmp_path: Path):
    read = read_source(SOURCE, load_llm_log("llm_0_36.sql", tmp_path / "logs.db"))
    outline = read.conversations[0].outline()
    fork = outline[len(TRANSLATION) :]
    assert [text for *_, text in fork] == ["In Spanish", "Hola"]
    assert fork[0][1] == outline[2][0]
    assert len(read.conversations) == 3


def test_thinking_is_read(tmp_path: Path):
    read = read_source(SOURCE, load_llm_log("llm_0_36.sql", tmp_path / "logs.db"))
    assert read.conversations[0].outline()[2][3] == "<Think about it. > | Bonjour"


def test_an_upgraded_database_has_both(tmp_path: Path):
    path = load_llm_log("llm_0_36.sql", tmp_path / "logs.db")
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO conversations (id, name) VALUES ('old', 'Old')")
        connection.execute(
            "INSERT INTO responses (id, prompt, response, conversation_id, reasoning) "
            "VALUES ('r', 'p', 'a', 'old', 'why')"
        )
    connection.close()
    read = read_source(SOURCE, path)
    assert read.conversations[0].conversation.title == "Old"
    assert [text for *_, text in read.conversations[0].outline()] == ["p", "<why> | a"]
    assert len(read.conversations) == 4


def test_since(log: Path):
    last = max(each.at or 0 for read in read_source(SOURCE, log).conversations for each in read.messages)
    assert len(read_source(SOURCE, log, since=last).conversations) == 1
    assert read_source(SOURCE, log, since=last + 1_000).conversations == []


def test_a_fork_of_itself_is_an_error(tmp_path: Path):
    path = load_llm_log("llm_0_36.sql", tmp_path / "logs.db")
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO threads (id, forked_from) VALUES ('a', 'b'), ('b', 'a')")
    connection.close()
    assert sorted(read_source(SOURCE, path).errors) == [
        ("a", "The thread is a fork of itself."),
        ("b", "The thread is a fork of itself."),
    ]


def test_a_database_of_another_program_is_refused(tmp_path: Path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (id)")
    connection.close()
    assert read_source(SOURCE, path).errors == [("other.db", "The database is not a log of llm.")]


@pytest.mark.parametrize(
    ("platform", "env", "expected"),
    [
        ("linux", {"HOME": "/h"}, "/h/.config/io.datasette.llm"),
        ("linux", {"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/io.datasette.llm"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Application Support/io.datasette.llm"),
        ("win32", {"APPDATA": "/roaming"}, "/roaming/io.datasette.llm"),
        ("linux", {"HOME": "/h", "LLM_USER_PATH": "/own"}, "/own"),
        ("linux", {}, None),
    ],
)
def test_where_llm_stores_its_log(platform: str, env: dict[str, str], expected: str | None):
    found = find_user_directory(env, platform=platform)
    assert (None if found is None else found.as_posix()) == expected


def test_the_usual_place_is_found(tmp_path: Path):
    folder = tmp_path / "llm"
    folder.mkdir()
    assert SOURCE.find_default_paths({"LLM_USER_PATH": str(folder)}) == []
    path = load_llm_log("llm_0_30.sql", folder / "logs.db")
    assert SOURCE.find_default_paths({"LLM_USER_PATH": str(folder)}) == [path]
    assert list(SOURCE.find_files(folder)) == [path]
