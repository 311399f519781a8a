"""Completion in the chat prompt."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.chat.completion import CompletionItem, CompletionSources, build_note_items, suggest

NOTES = build_note_items(
    [
        ("places/Water mills.md", ("mills",)),
        ("places/Wind mills.md", ()),
        ("index.md", ()),
        ("journal/index.md", ()),
        ("The old mill.md", ()),
    ]
)
CHOICES = CompletionSources(
    commands=[
        CompletionItem("context", "the window"),
        CompletionItem("compact", "archive"),
        CompletionItem("undo", "take back"),
    ],
    notes=NOTES,
    files=["README.md", "src/app.py", "data/wind speed.csv"],
    arguments=lambda command: {"pin": [CompletionItem("12", "user: hello"), CompletionItem("2", "user: hi")]}.get(
        command, []
    ),
)


def suggest_texts(before: str) -> list[str]:
    """The texts as they would stand before the cursor."""
    found = suggest(before, CHOICES, headings=lambda note: ["Wheels", "Stones"] if note == "Water mills" else [])
    return [f"{before[: len(before) - each.replace_length]}{each.text}" for each in found]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("See [[wat", ["See [[Water mills]]", "See [[Water mills|mills]]"]),
        ("See [[WIND", ["See [[Wind mills]]"]),
        ("[[old", ["[[The old mill]]"]),
        ("![[old", ["![[The old mill]]"]),
        ("[[inde", ["[[index]]", "[[journal/index]]"]),
        ("[[Water mills#", ["[[Water mills#Wheels]]", "[[Water mills#Stones]]"]),
        ("[[Water mills#wh", ["[[Water mills#Wheels]]"]),
        ("[[nothing", []),
        ("[[Water mills]] and", []),
        ("Read @src", ["Read @src/app.py"]),
        ("Read @wind", ['Read @"data/wind speed.csv"']),
        ('Read @"data/wi', ['Read @"data/wind speed.csv"']),
        ("@", ["@README.md", "@src/app.py", '@"data/wind speed.csv"']),
        ("me@src", []),
        ("/co", ["/context ", "/compact "]),
        ("/", ["/undo ", "/context ", "/compact "]),
        (" /co", []),
        ("say /co", []),
        ("/pin 1", ["/pin 12"]),
        ("/pin ", ["/pin 2", "/pin 12"]),
        ("/undo ", []),
        ("hello", []),
    ],
)
def test_what_is_offered(before: str, after: list[str]):
    assert sorted(suggest_texts(before)) == sorted(after)


def test_names_that_begin_so_stand_before_those_that_hold_it():
    found = [each.display for each in suggest("[[mill", CHOICES)]
    assert found.index("Wind mills") < found.index("The old mill")
    many = CompletionSources(notes=[CompletionItem("treadmill"), CompletionItem("a mill"), CompletionItem("millstone")])
    assert [each.display for each in suggest("[[mill", many)] == ["millstone", "a mill", "treadmill"]


def test_a_name_of_several_notes_is_offered_by_path():
    assert [named.name for named in NOTES if "index" in named.name] == ["index", "journal/index"]


def test_paths_on_disk_are_offered_for_an_export(tmp_path: Path):
    (tmp_path / "notes.md").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / ".hidden").touch()
    found = suggest(f"/export {tmp_path}/", CHOICES)
    assert [each.text for each in found] == ["folder/", "notes.md"]
    assert suggest(f"/export {tmp_path}/none/", CHOICES) == []


@given(st.text(alphabet=st.sampled_from('[]@/"# abmw\n|'), max_size=30))
def test_no_text_fails_and_nothing_before_the_fragment_is_touched(before: str):
    for each in suggest(before, CHOICES):
        assert 0 <= each.replace_length <= len(before)
