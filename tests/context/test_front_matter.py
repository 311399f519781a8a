"""Front matter: read where it can be, said where it cannot, and never in the way of the text below it."""

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.front_matter import Front, front_matter, front_matter_end
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
    front, body = front_matter(WHOLE)
    assert front == Front(
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
    assert Front.parse(front.canonical()) == front


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
    assert front_matter(text).body == body


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
    front = front_matter(f"---\n{fields}\n---\n").front
    assert (front.aliases, front.tags) == (aliases, tags)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ("include: sometimes", "include: 'sometimes' is none of always, manual and agent; taken as 'manual'"),
        ("priority: high", "priority: 'high' is not a whole number; taken as 0"),
        ("priority: true", "priority: True is not a whole number; taken as 0"),
        ("enabled: perhaps", "enabled: 'perhaps' is neither true nor false; taken as True"),
        ("name: [a]", "name: a text is expected, and a list stands there; taken as None"),
        ("a: [1, 2", "the front matter is not YAML: "),
        ("a: b: c", "the front matter is not YAML: "),
        ("day: 2024-02-31", "the front matter holds a value that cannot be read: "),
        ("a: !!python/object/apply:os.system [ls]", "the front matter is not YAML: "),
        ("a: &x [1]\nb: *x", "the front matter uses YAML's anchors"),
        ("a: *x", "the front matter uses YAML's anchors"),
        ("a: !!binary aGk=", "a: binary data cannot be kept; left out"),
        ("a: " + "[" * 25 + "]" * 25, "a: it is nested more than 20 deep; left out"),
        ("a: " + "[" * 5_000, "the front matter "),
        ("n: 1" + "0" * 5_000, "the front matter holds a value that cannot be read: "),
        ("a: " + "x" * 70_000, "the front matter has 70,003 characters"),
        ("text between rules", "what stands between the first two rules is text"),
        ("- a\n- b", "what stands between the first two rules is text"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_rest_stands(fields: str, fault: str):
    front, body = front_matter(f"---\n{fields}\n---\nthe text")
    assert front.faults
    assert front.faults[0].startswith(fault)
    assert body.endswith("the text")


def test_one_bad_field_spoils_no_other():
    front, _ = front_matter("---\ninclude: maybe\nname: Good\npriority: 7\n---\n")
    assert (front.name, front.priority, front.include, len(front.faults)) == ("Good", 7, "manual", 1)


def test_a_bomb_of_anchors_does_no_harm():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 12)]
    started = time.perf_counter()
    front, _ = front_matter("---\n" + "\n".join(lines) + "\n---\n")
    assert "anchors" in front.faults[0]
    assert not front.extra
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize("innocent", ["a: Q & A", "a: 5 * 3", "a: '*bold*'", 'a: "&x"', "a: [b&c, d*]", "- &"])
def test_signs_that_are_no_anchors_pass(innocent: str):
    assert not any("anchors" in fault for fault in front_matter(f"---\n{innocent}\n---\n").front.faults)


def test_half_a_letter_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    """PyYAML's reader in C refuses it, the one in Python does not."""
    monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    front, _ = front_matter('---\nname: "\\ud800x"\nother: ["\\udfff"]\n---\n')
    assert (front.name, front.extra) == ("?x", {"other": ["?"]})


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert front_matter("no fields, no YAML").body
    with pytest.raises(MissingExtra, match=r"quire\[vault\]"):
        front_matter("---\nname: a\n---\n")


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
        front, body = front_matter(whole)
        assert whole.removeprefix("\ufeff").endswith(body)
        assert Front.parse(front.canonical()).faults == front.faults
        front.canonical().encode()
        if not front.faults:
            assert (whole[front_matter_end(whole) :] or whole.removeprefix("\ufeff")).endswith(body)
            assert front_matter_end(whole) in (0, len(whole) - len(body))
