"""How many tokens a text has, and who says so.

Exact where the model's vocabulary is at hand, otherwise the counter named `estimate`. Nothing is downloaded: the
vocabularies come inside splintr's wheel or from a `tokenizer.json` on disk, and are loaded when first asked for.
Only content is counted; what a provider adds around a message belongs to the provider's overheads.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from quire.errors import UnknownTokenizer

ESTIMATE = "estimate"
"""The name of every counter that does not know the model's vocabulary."""

Encode = Callable[[str], list[int]]


class Counter(Protocol):
    """Counts under the same `name` agree with each other, unless that name is `estimate`."""

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def count(self, text: str) -> int: ...


def counter_for(model: str, *, tokenizer: str | None = None) -> Counter:
    """The counter for a model, by its name; `tokenizer` overrides it with a vocabulary or a `tokenizer.json`."""
    if tokenizer is not None:
        return _named(tokenizer)
    vocabulary = vocabulary_of(model)
    return estimate() if vocabulary is None else _of_vocabulary(vocabulary) or estimate()


def estimate() -> Counter:
    """For models whose vocabulary is not public: o200k's count, or one by length where splintr has no wheel."""
    return _Counter(ESTIMATE, exact=False, vocabulary="o200k_base") if _has_vocabularies() else _LengthCounter()


_O200K = r"gpt-4o|chatgpt-4o|gpt-4\.[15]|gpt-5|o[134](?![\w.])"
_CL100K = r"gpt-4(?![\w.])|gpt-3\.5|gpt-35|text-embedding-(3|ada-002)|(davinci|babbage)-002"
_MISTRAL_V1 = r".*mistral-7b.*v0[.:][12]|(open-)?mixtral([-:]8x7b|:latest|:instruct|$)"
_MISTRAL_V2 = (
    r".*mistral-7b.*v0[.:]3|mistral(:7b|:latest|:instruct|$)|(open-)?mixtral[-:]8x22b|mathstral"
    r"|codestral(-22b|-2405|:|$)|mistral-large-(instruct-)?24(07|11)|mistral-small-(instruct-)?2409"
)
_MISTRAL_V3 = (
    r"(open-)?mistral-nemo|pixtral-12b|ministral-(8b|3-)|devstral-small|magistral-small"
    r"|mistral-small(-24b|:24b|-25\d\d|-?3)"
)

# Read from the top. None marks names that look like a model above or below, and are not tokenized as it is.
_MODELS: tuple[tuple[str, str | None], ...] = (
    (r"gpt-oss", "o200k_harmony"),
    (_O200K, "o200k_base"),
    (_CL100K, "cl100k_base"),
    (r"deepseek-r1(-0528-qwen|:8b)", None),
    (r"deepseek-r1(-distill-qwen|:(1\.5|7|14|32)b)", "qwen3"),
    (r"deepseek-r1(-distill-llama|:70b)", "llama3"),
    (r"deepseek-(chat|reasoner|v3|r1)", "deepseek_v3"),
    (r"(.*-)?llama-?3(?!\d)", "llama3"),
    (r"(.*-)?code-?llama", "codellama"),
    (r"(.*-)?llama-?2(?!\d)|tinyllama|vicuna", "llama2"),
    (r"qwen-?(1\.5|2|2\.5|3)(?![.\d])|qwq", "qwen3"),
    (_MISTRAL_V1, "mistral_v1"),
    (_MISTRAL_V2, "mistral_v2"),
    (_MISTRAL_V3, "mistral_v3"),
    (r"glm-?4(\.[56])?(?![.\d])", "glm4"),
    (r"kimi-(k[23]|linear)", "kimi_k2"),
    (r"phi-?4(?!-m)", "phi4"),
    (r"olmo-?2(?!\d)", "olmo2"),
    (r"gemma-?2(?![\w.])", "gemma2"),
    (r"gemma-?3n?(?![\w.])", "gemma3"),
    (r"gemma-?4(?![\w.])", "gemma4"),
)

VOCABULARIES = tuple(sorted({vocabulary for _, vocabulary in _MODELS if vocabulary is not None}))
"""What a `tokenizer` setting may name."""


@lru_cache(maxsize=1024)
def vocabulary_of(model: str) -> str | None:
    """The vocabulary that a model is known to use."""
    for name in _names(model):
        for pattern, vocabulary in _MODELS:
            if re.match(rf"([a-z-]+\.)*({pattern})", name):
                return vocabulary
    return None


def _names(model: str) -> Iterator[str]:
    """A model's name without its provider: `azure/gpt-4o`, `openai:gpt-4o`; in `llama3:8b` the colon is its own."""
    name = model.strip().lower().rpartition("/")[2]
    yield name
    yield name.partition(":")[2]


@dataclass(slots=True, eq=False)
class _Counter:
    """Loads its vocabulary when there is first something to count: that takes about a fifth of a second."""

    name: str
    exact: bool
    vocabulary: str
    _encode: Encode | None = None

    def count(self, text: str) -> int:
        encode = self._encode
        if encode is None:
            if not text:
                return 0
            encode = self._encode = _loaded(_vocabulary_encoder, self.vocabulary)
        return len(encode(text))


@dataclass(frozen=True, slots=True)
class _FileCounter:
    """A `tokenizer.json` may wrap every text in boundary tokens, which are not part of a message's content."""

    name: str
    exact: bool
    encode: Encode
    boundary: int

    def count(self, text: str) -> int:
        return len(self.encode(text)) - self.boundary


@dataclass(frozen=True, slots=True)
class _LengthCounter:
    name: str = ESTIMATE
    exact: bool = False

    def count(self, text: str) -> int:
        return length_estimate(text)


def _named(tokenizer: str) -> Counter:
    name = tokenizer.strip().lower().replace("-", "_")
    if name == ESTIMATE:
        return estimate()
    if name in VOCABULARIES:
        counter = _of_vocabulary(name)
        if counter is None:
            raise UnknownTokenizer(f"The tokenizer {name} needs the package splintr-rs, which cannot be imported here.")
        return counter
    if name.endswith(".json"):
        return _loaded(_file_counter, Path(tokenizer).expanduser().resolve())
    known = ", ".join(VOCABULARIES)
    raise UnknownTokenizer(
        f"There is no tokenizer {tokenizer!r}; name one of {known}, {ESTIMATE}, or the path of a tokenizer.json."
    )


def _of_vocabulary(name: str) -> Counter | None:
    return _Counter(name, exact=True, vocabulary=name) if _has_vocabularies() else None


def _has_vocabularies() -> bool:
    """Whether splintr can be imported, which is quick, unlike loading a vocabulary."""
    try:
        import_module("splintr")
    except ImportError:
        return False
    return True


_Key = TypeVar("_Key")
_Loaded = TypeVar("_Loaded")
_loading = Lock()


def _loaded(load: Callable[[_Key], _Loaded], key: _Key) -> _Loaded:
    # Without the lock, threads that first ask at the same time would each load a vocabulary of their own.
    with _loading:
        return load(key)


@cache
def _vocabulary_encoder(vocabulary: str) -> Encode:
    from splintr import Tokenizer

    # `encode_ordinary`, because text that spells out a special token is still only text.
    return Tokenizer.from_pretrained(vocabulary).encode_ordinary


@cache
def _file_counter(path: Path) -> Counter:
    try:
        from splintr import from_json_bytes

        data = path.read_bytes()
        encode = from_json_bytes(data).encode_ordinary
    except (ImportError, OSError, ValueError) as exc:
        raise UnknownTokenizer(f"The tokenizer {path} cannot be used: {exc}") from exc
    digest = sha256(data).hexdigest()[:12]
    return _FileCounter(f"tokenizer.json@{digest}", exact=True, encode=encode, boundary=len(encode("")))


# Runs of one kind of character, roughly as tokenizers split them: the pattern, the least that a run costs, and what
# each of its characters costs. Fitted to o200k on the texts in the tests.
_KINDS: dict[str, tuple[str, float, float]] = {
    "accented": (r"[A-Za-z]{0,20}[\u00c0-\u024f\u1e00-\u1eff][A-Za-z\u00c0-\u024f\u1e00-\u1eff]*", 1, 0.45),
    "word": (r"[A-Z]?[a-z]+", 1, 1 / 6),
    "capitals": (r"[A-Z]+", 1, 1 / 3),
    "digits": (r"[0-9]+", 1, 1 / 3),
    "blank": (r" (?=\S)", 0, 0),
    "space": (r"\s+", 1, 1 / 16),
    "rule": (r"(?P<sign>[!-/:-@\[-`{-~])(?P=sign){3,}", 1, 1 / 8),
    "signs": (r"[!-/:-@\[-`{-~]+", 1, 0.75),
    "alphabet": (r"[\u0370-\u07ff]+", 1, 0.5),
    "syllables": (r"[\u0900-\u10ff\u1780-\u17ff\uac00-\ud7ff]+", 1, 0.6),
    "ideographs": (r"[\u2e80-\uabff\uf900-\ufaff\uff00-\uffef]+", 1, 1),
    "emoji": (r"[\U0001f000-\U0001ffff]+", 1, 2),
    "astral": (r"[\U00010000-\U0010ffff]+", 1, 3.5),
    "other": (r".", 1, 2.5),
}


def length_estimate(text: str) -> int:
    """A count from the lengths of a text's runs alone, rather high than low."""
    total = 0.0
    for run in _runs().finditer(text):
        _, least, each = _KINDS[run.lastgroup or "other"]
        total += max(least, each * (run.end() - run.start()))
    return ceil(total)


@cache
def _runs() -> re.Pattern[str]:
    kinds = (f"(?P<{kind}>{pattern})" for kind, (pattern, _, _) in _KINDS.items())
    return re.compile("|".join(kinds), re.DOTALL)
