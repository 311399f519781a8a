"""Generated vaults for tests and benchmarks: folders of notes with links, headings, aliases, code and attachments.

The same seed gives the same vault, byte for byte.
"""

from pathlib import Path
from random import Random

_WORDS = (
    "water", "mill", "river", "stone", "wheel", "flour", "grain", "bridge", "market", "ledger", "harvest", "winter",
    "tax", "guild", "carpenter", "iron", "ore", "charcoal", "valley", "abbey", "charter", "toll", "ferry", "meadow",
    "orchard", "cellar", "lantern", "copper", "loom", "wool", "dye", "salt", "road", "inn", "court", "bell", "tower",
)  # fmt: skip
FOLDERS = ("", "places", "people", "journal/2024", "journal/2025", "archive/old notes", "projects/mill")


def write_vault(folder: Path, *, notes: int = 10_000, seed: int = 0) -> list[str]:
    """Writes notes into a folder and returns their paths, in order."""
    random = Random(seed)
    names = [make_note_name(number) for number in range(notes)]
    for place in FOLDERS:
        (folder / place).mkdir(parents=True, exist_ok=True)
    paths: list[str] = []
    for number, name in enumerate(names):
        place = FOLDERS[number % len(FOLDERS)]
        path = f"{place}/{name}.md" if place else f"{name}.md"
        (folder / path).write_text(_generate_note(number, names, random), encoding="utf-8")
        paths.append(path)
    (folder / "places" / "map.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    return paths


def make_note_name(number: int) -> str:
    """Makes a unique name, except for every fiftieth, which several folders share."""
    first, second = _WORDS[number % len(_WORDS)], _WORDS[number // len(_WORDS) % len(_WORDS)]
    return f"index {number // (50 * len(FOLDERS))}" if number % 50 == 0 else f"{first.title()} {second} {number}"


def _generate_note(number: int, names: list[str], random: Random) -> str:
    """Generates about two thousand characters, a typical length of notes."""
    front = f"---\naliases: [alias {number}, the {names[number].lower()}]\ntags: [{_WORDS[number % 7]}]\n---\n"
    parts = [front if number % 3 == 0 else "", f"# {names[number]}\n\n{_generate_prose(random, 30)}\n"]
    for section in range(random.randint(1, 4)):
        other = names[random.randrange(len(names))]
        link = random.choice((f"[[{other}]]", f"[[{other}|there]]", f"[[{other}#Section 1]]", f"![[{other}#^b1]]"))
        parts.append(f"\n## Section {section}\n\n{_generate_prose(random, 60)} See {link}. ^b{section}\n")
        if random.random() < 0.3:
            parts.append(f"\n```python\nprint('[[{other}]]')\n```\n")
    return "".join(parts)


def _generate_prose(random: Random, words: int) -> str:
    chosen = [random.choice(_WORDS) for _ in range(words)]
    return " ".join(chosen).capitalize() + "."
