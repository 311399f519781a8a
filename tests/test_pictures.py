"""The words in the pictures of the docs are still in the source: whoever renames a label takes the picture again."""

import html
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "picture"
LABELS: dict[str, list[str]] = json.loads((PICTURES / "labels.json").read_text(encoding="utf-8"))
PHRASES = {
    "chat": [
        "Type /help for the commands.",
        "tokens freed; undo with /undo",
        "Not included",
        "covered by a compaction",
    ],
    "chat-long-turn": ["Type /help for the commands.", "tool results cleared", "tokens freed; undo with /undo"],
    "recording": ["Type /help for the commands.", "tool results cleared", "waiting for the model"],
    "scan": ["Findings, the most expensive first", "of the input from the cache", "warns in the status line"],
    "undo": ["The model sees every message again.", "It takes effect with your next message."],
}
"""Quire's own words in the drawn terminals."""


@cache
def read_source() -> str:
    files = [
        *(ROOT / "src" / "quire").rglob("*.py"),
        *(path for path in (ROOT / "web" / "src").rglob("*") if path.suffix in {".ts", ".svelte"}),
        ROOT / "web" / "demo.py",
        *(ROOT / "tests" / "infra").glob("*.py"),
        *(ROOT / "tests" / "page").glob("*.py"),
        *PICTURES.glob("*.py"),
    ]
    return join_words("\n".join(path.read_text(encoding="utf-8") for path in files))


def join_words(text: str) -> str:
    """Lines of a text, and adjacent strings of a program, as one line."""
    return " ".join(re.sub(r"[\"']\s*\n\s*f?[\"']", "", text).split())


def read_drawn_text(name: str) -> str:
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", (PICTURES / f"{name}.svg").read_text(encoding="utf-8"))
    return join_words(html.unescape(" ".join(drawn)).replace("\N{NO-BREAK SPACE}", " "))


@pytest.mark.parametrize("name", PHRASES)
def test_words_of_a_drawn_terminal_are_in_the_source(name: str):
    drawn = read_drawn_text(name)
    assert [phrase for phrase in PHRASES[name] if phrase not in drawn] == [], "the picture has other words now"
    assert [phrase for phrase in PHRASES[name] if phrase not in read_source()] == [], "take the picture again"


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_a_screenshot_are_in_the_source(name: str):
    assert len(LABELS[name]) >= 3
    source = read_source()
    # The label of a setting is made of its name.
    missing = [label for label in LABELS[name] if label not in source and label.lower().replace(" ", "_") not in source]
    assert missing == [], f"take {name}.png again"


def test_labels_belong_to_screenshots():
    assert set(LABELS) <= {path.stem for path in PICTURES.glob("*.png")}


def test_every_picture_is_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert [
        path.name for path in PICTURES.iterdir() if path.suffix in (".png", ".svg") and path.name not in pages
    ] == []


def test_the_recording_opens_with_its_last_frame_and_not_with_an_empty_screen():
    text = (PICTURES / "recording.svg").read_text(encoding="utf-8")
    [last] = re.findall(r'class="frame f(\d+) last"', text)
    [(total, delay)] = re.findall(rf"animation: k{last} ([\d.]+)s step-end -([\d.]+)s", text)
    [start] = re.findall(rf"@keyframes k{last} {{.*?([\d.]+)% {{ visibility: visible", text)
    assert abs(float(start) / 100 * float(total) - float(delay)) < 0.02
