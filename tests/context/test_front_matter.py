"""Front matter: fields and errors, and the body, which is usable in every case."""

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.front_matter import FrontMatter, find_front_matter_end, parse_front_matter
from quire.errors import MissingExtra

WHOLE = """---
name: Style
description: How we write,
  in two lines
include: always
priority: 3
enabled: no
aliases: [House style, Stil]
tags: [writing, "#english"]
title: The style
since: 2024-05-01
nested: {a: [1, 2.5, null, true]}
---
# Style
"""


def test_all_fields_are_read():
    front_matter, body = parse_front_matter(WHOLE)
    assert front_matter == FrontMatter(
        name="Style",
        description="How we write, in two lines",
        include="always",
        priority=3,
        enabled=False,
        aliases=("House style", "Stil"),
        tags=("writing", "english"),
        extra={"title": "The style", "since": "2024-05-01", "nested": {"a": [1, 2.5, None, True]}},
    )
    assert body == "# Style\n"
    assert FrontMatter.parse(front_matter.canonical_json()) == front_matter


def test_names_stay_as_they_are_written():
    """YAML 1.1 reads some words as booleans, and some numbers in other bases."""
    written = "---\nname: Off\ndescription: 1:30\naliases: [no, 010, Yes, null]\ntags: on, 1_000\nenabled: off\n---\n"
    front_matter, _ = parse_front_matter(written)
    assert (front_matter.name, front_matter.description, front_matter.enabled) == ("Off", "1:30", False)
    assert (front_matter.aliases, front_matter.tags) == (("no", "010", "Yes"), ("on", "1_000"))
    assert parse_front_matter("---\nname: true\ntags: 7\n---\n").front_matter == FrontMatter(name="true", tags=("7",))


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("no front matter", "no front matter"),
        ("", ""),
        ("---\n---\ntext", "text"),
        ("---\nname: a\n...\ntext", "text"),
        ("---\r\nname: a\r\n---\r\ntext", "text"),
        ("\ufeff---\nname: a\n---\ntext", "text"),
        ("\ufefftext", "text"),
        ("---\nname: a\n---", ""),
        ("--- \nname: a\n---  \ntext", "text"),
        ("---\nname: never closed\n", "---\nname: never closed\n"),
        ("\n---\nname: a\n---\n", "\n---\nname: a\n---\n"),
        ("----\nname: a\n----\n", "----\nname: a\n----\n"),
        ("---\nname: a\n--- x\n---\ntext", "text"),
        ("---\nA paragraph between two rules.\n---\ntext", "---\nA paragraph between two rules.\n---\ntext"),
    ],
)
def test_the_text_below_is_what_remains(text: str, body: str):
    assert parse_front_matter(text).body == body


@pytest.mark.parametrize(
    ("fields", "aliases", "tags"),
    [
        ("aliases: Doggo, Woofer", ("Doggo", "Woofer"), ()),
        ("alias: Doggo", ("Doggo",), ()),
        ("aliases:\n  - 2024\n  -\n  - x y", ("2024", "x y"), ()),
        ("aliases:", (), ()),
        ("tags: 'a #b, c'", (), ("a", "b", "c")),
        ("tag: one", (), ("one",)),
        ("aliases: [[a]]", (), ()),
    ],
)
def test_names_are_read_as_vaults_write_them(fields: str, aliases: tuple[str, ...], tags: tuple[str, ...]):
    front_matter = parse_front_matter(f"---\n{fields}\n---\n").front_matter
    assert (front_matter.aliases, front_matter.tags) == (aliases, tags)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("include: sometimes", "include: 'sometimes' is not one of always, manual and agent; 'manual' is used"),
        ("priority: high", "priority: 'high' is not a whole number; 0 is used"),
        ("priority: true", "priority: True is not a whole number; 0 is used"),
        ("enabled: perhaps", "enabled: 'perhaps' is neither true nor false; True is used"),
        ("name: [a]", "name: expected text, not a list; None is used"),
        ("a: [1, 2", "the front matter is not YAML: "),
        ("a: b: c", "the front matter is not YAML: "),
        ("day: 2024-02-31", "the front matter has a value that cannot be parsed: "),
        ("a: !!python/object/apply:os.system [ls]", "the front matter is not YAML: "),
        ("a: &x [1]\nb: *x", "the front matter uses YAML anchors"),
        ("a: *x", "the front matter uses YAML anchors"),
        ("a: !!binary aGk=", "a: binary data is not supported; ignored"),
        ("a: " + "[" * 25 + "]" * 25, "a: it is nested more than 20 levels deep; ignored"),
        ("a: " + "[" * 5_000, "the front matter "),
        ("n: 1" + "0" * 5_000, "the front matter has a value that cannot be parsed: "),
        ("a: " + "x" * 70_000, "the front matter has 70,003 characters"),
        ("text between rules", "the block between the first two `---` lines is text"),
        ("- a\n- b", "the block between the first two `---` lines is text"),
    ],
)
def test_an_invalid_field_is_an_error_and_the_rest_is_read(fields: str, error: str):
    front_matter, body = parse_front_matter(f"---\n{fields}\n---\nthe text")
    assert front_matter.errors
    assert front_matter.errors[0].startswith(error)
    assert body.endswith("the text")


def test_one_bad_field_spoils_no_other():
    front_matter, _ = parse_front_matter("---\ninclude: maybe\nname: Good\npriority: 7\n---\n")
    assert (front_matter.name, front_matter.priority, front_matter.include, len(front_matter.errors)) == (
        "Good",
        7,
        "manual",
        1,
    )


def test_a_bomb_of_anchors_does_no_harm():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 12)]
    started = time.process_time()
    front_matter, _ = parse_front_matter("---\n" + "\n".join(lines) + "\n---\n")
    assert "anchors" in front_matter.errors[0]
    assert not front_matter.extra
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("innocent", ["a: Q & A", "a: 5 * 3", "a: '*bold*'", 'a: "&x"', "a: [b&c, d*]", "- &"])
def test_signs_that_are_no_anchors_pass(innocent: str):
    assert not any("anchors" in error for error in parse_front_matter(f"---\n{innocent}\n---\n").front_matter.errors)


def test_a_lone_surrogate_is_replaced(monkeypatch: pytest.MonkeyPatch):
    """PyYAML's C parser rejects it, the Python parser does not."""
    monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    front_matter, _ = parse_front_matter('---\nname: "\\ud800x"\nother: ["\\udfff"]\n---\n')
    assert (front_matter.name, front_matter.extra) == ("\ufffdx", {"other": ["\ufffd"]})


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert parse_front_matter("no fields, no YAML").body
    with pytest.raises(MissingExtra, match=r"quire\[vault\]"):
        parse_front_matter("---\nname: a\n---\n")


PIECES = [
    "---\n",
    "...\n",
    "name: ",
    "include: ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "!!",
    "\n",
    ": ",
    "'",
    '"',
    "|\n",
    ">",
    "\t",
    "\ufeff",
    "#",
    "\\ud800",
    "1e9999",
    "0x",
    "2024-01-01",
    "~",
    "<<: ",
    "? ",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=25).map("".join))
def test_no_text_raises_and_the_result_can_be_stored(text: str):
    for whole in (text, f"---\n{text}\n---\nbody"):
        front_matter, body = parse_front_matter(whole)
        assert whole.removeprefix("\ufeff").endswith(body)
        assert FrontMatter.parse(front_matter.canonical_json()).errors == front_matter.errors
        front_matter.canonical_json().encode()
        if not front_matter.errors:
            assert (whole[find_front_matter_end(whole) :] or whole.removeprefix("\ufeff")).endswith(body)
            assert find_front_matter_end(whole) in (0, len(whole) - len(body))
