"""Token counters: exact if the model's tokenizer vocabulary is available, otherwise the counter named `estimate`.

Nothing is downloaded: the vocabularies are part of splintr's wheel or come from a `tokenizer.json` on disk, and are
loaded lazily. Only content is counted. What a provider adds around a message belongs to the wire format's overheads.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib import import_module
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar

from quire.errors import UnknownTokenizer
from quire.model.policy import MAX_MODEL_NAME_CHARS

_log = logging.getLogger(__name__)

MAX_WARNINGS = 1_000
"""Warnings that are logged once; a further one forgets the oldest."""
ESTIMATE_COUNTER_NAME = "estimate"
"""Name of every counter that does not use the model's own vocabulary."""

MAX_ENCODED_CHARS = 20_000
"""Maximum length of a text that is encoded in one call. A longer one is divided: the encoder holds Python's global lock
from the beginning of a call to its end, a microsecond or less per character, and no other thread runs meanwhile."""
_MAX_CUT_SEARCHES = 50

Encode = Callable[[str], list[int]]


class TokenCounter(Protocol):
    """Counters with the same `name` give the same counts, unless that name is `estimate`."""

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def count(self, text: str) -> int: ...


def counter_for(model: str, *, tokenizer: str | None = None) -> TokenCounter:
    """Selects the counter by the model's name; `tokenizer` overrides it with a vocabulary or a `tokenizer.json`.

    If that tokenizer cannot be used, the log has a warning and tokens are estimated, which `exact` says.
    """
    if tokenizer is not None:
        try:
            return load_tokenizer(tokenizer)
        except UnknownTokenizer as error:
            warn_once(f"{error} Tokens are estimated until the tokenizer is corrected.")
            return estimating_counter()
    vocabulary = vocabulary_for(model)
    return estimating_counter() if vocabulary is None else _make_vocabulary_counter(vocabulary) or estimating_counter()


def estimating_counter() -> TokenCounter:
    """Counter for models without a public vocabulary: o200k, or the length of the text where splintr has no wheel."""
    return (
        _VocabularyCounter(ESTIMATE_COUNTER_NAME, exact=False, vocabulary="o200k_base")
        if _has_splintr()
        else _LengthCounter()
    )


_O200K = r"gpt-4o|chatgpt-4o|gpt-4\.[15]|gpt-5|o[134](?![\w.])"
_CL100K = r"gpt-4(?![\w.])|gpt-3\.5|gpt-35|text-embedding-(3|ada-002)|(davinci|babbage)-002"
# The first `mistral-7b` counts: without the atomic group, a name that repeats it would take quadratic time.
_MISTRAL_7B = r"(?>.*?mistral-7b)"
_MISTRAL_V1 = rf"{_MISTRAL_7B}.*v0[.:][12]|(open-)?mixtral([-:]8x7b|:latest|:instruct|$)"
_MISTRAL_V2 = (
    rf"{_MISTRAL_7B}.*v0[.:]3|mistral(:7b|:latest|:instruct|$)|(open-)?mixtral[-:]8x22b|mathstral"
    r"|codestral(-22b|-2405|:|$)|mistral-large-(instruct-)?24(07|11)|mistral-small-(instruct-)?2409"
)
_MISTRAL_V3 = (
    r"(open-)?mistral-nemo|pixtral-12b|ministral-(8b|3-)|devstral-small|magistral-small"
    r"|mistral-small(-24b|:24b|-25\d\d|-?3)"
)

# The first match counts. None marks names that resemble another model here but have a different tokenizer.
_MODEL_VOCABULARIES: tuple[tuple[str, str | None], ...] = (
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

# A name may have up to four prefixes, as in `us.meta.llama3-8b`. Their number is bounded because the pattern after them
# is tried behind each one.
_MODEL_PATTERNS = tuple(
    (re.compile(rf"(?:[a-z-]+\.){{0,4}}(?:{pattern})"), vocabulary) for pattern, vocabulary in _MODEL_VOCABULARIES
)

VOCABULARIES = tuple(sorted({vocabulary for _, vocabulary in _MODEL_VOCABULARIES if vocabulary is not None}))
"""Valid values of a model's `tokenizer`."""


@lru_cache(maxsize=1024)
def vocabulary_for(model: str) -> str | None:
    """Vocabulary of a model, or None if it is unknown."""
    if len(model) > MAX_MODEL_NAME_CHARS:
        return None
    # Without `azure/`, then also without `openai:`; in `llama3:8b` the colon is part of the name.
    full_name = model.strip().lower().rpartition("/")[2]
    for name in (full_name, full_name.partition(":")[2]):
        for pattern, vocabulary in _MODEL_PATTERNS:
            if pattern.match(name):
                return vocabulary
    return None


@dataclass(slots=True, eq=False)
class _VocabularyCounter:
    """Loads its vocabulary on the first count, because that takes about 0.2 seconds."""

    name: str
    exact: bool
    vocabulary: str
    _encode: Encode | None = None
    _adds_space: bool = False
    """Whether the encoder puts a space before each text, as SentencePiece does."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The encoder cannot be pickled.
        return _VocabularyCounter, (self.name, self.exact, self.vocabulary)

    def count(self, text: str) -> int:
        encode = self._encode
        if encode is None:
            if not text:
                return 0
            counted = find_counted_text(self.vocabulary, text)
            if counted is not None:
                return counted
            encode = _load_locked(_vocabulary_encoder, self.vocabulary)
            self._adds_space = len(encode(" a")) > len(encode("a"))
            # The first long run of one kind makes the encoder build tables; they belong to the loading.
            encode(" " * MAX_ENCODED_CHARS)
            self._encode = encode
        if len(text) <= MAX_ENCODED_CHARS:
            return len(encode(text))
        first, *others = split_for_encoding(text)
        others = [piece.removeprefix(" ") for piece in others] if self._adds_space else others
        return sum(len(encode(piece)) for piece in (first, *others))


@dataclass(frozen=True, slots=True)
class _FileCounter:
    """Counts with a `tokenizer.json`, without the boundary tokens that it may add around every text."""

    name: str
    exact: bool
    path: Path
    encode: Encode
    boundary_tokens: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _file_counter, (self.path,)

    def count(self, text: str) -> int:
        if len(text) <= MAX_ENCODED_CHARS:
            return len(self.encode(text)) - self.boundary_tokens
        return sum(len(self.encode(piece)) - self.boundary_tokens for piece in split_for_encoding(text))


@dataclass(frozen=True, slots=True)
class _LengthCounter:
    name: str = ESTIMATE_COUNTER_NAME
    exact: bool = False

    def count(self, text: str) -> int:
        return estimate_by_length(text)


def split_for_encoding(text: str) -> Iterator[str]:
    """Splits a text into pieces of at most `MAX_ENCODED_CHARS`, which together have as many tokens as the text.

    Every tokenizer begins a token at a single space before a letter, so the text is cut there. Without such a place
    near the end of a piece, as in a run of blanks, it is cut at the end, and the cut adds or removes a token or so.
    """
    start = 0
    while len(text) - start > MAX_ENCODED_CHARS:
        end = _find_cut(text, start)
        yield text[start:end]
        start = end
    yield text[start:]


def _find_cut(text: str, start: int) -> int:
    end = cut = start + MAX_ENCODED_CHARS
    for _ in range(_MAX_CUT_SEARCHES):
        cut = text.rfind(" ", start + MAX_ENCODED_CHARS // 2, cut)
        if cut < 0:
            break
        if text[cut + 1].isascii() and text[cut + 1].isalpha() and not text[cut - 1].isspace():
            return cut
    return end


def load_tokenizer(tokenizer: str) -> TokenCounter:
    """The counter of a vocabulary or a `tokenizer.json`; raises `UnknownTokenizer` if it cannot be used."""
    name = tokenizer.strip().lower().replace("-", "_")
    if name == ESTIMATE_COUNTER_NAME:
        return estimating_counter()
    if name in VOCABULARIES:
        counter = _make_vocabulary_counter(name)
        if counter is None:
            raise UnknownTokenizer(f"The tokenizer {name} needs the package splintr-rs, which cannot be imported.")
        return counter
    if name.endswith(".json"):
        return _load_locked(_file_counter, Path(tokenizer).expanduser().resolve())
    known = ", ".join(VOCABULARIES)
    raise UnknownTokenizer(
        f"Unknown tokenizer {tokenizer!r}; use one of {known}, {ESTIMATE_COUNTER_NAME}, or the path of a "
        "tokenizer.json."
    )


def _make_vocabulary_counter(name: str) -> TokenCounter | None:
    return _VocabularyCounter(name, exact=True, vocabulary=name) if _has_splintr() else None


def _has_splintr() -> bool:
    """Whether splintr can be imported, which is fast, unlike loading a vocabulary."""
    try:
        import_module("splintr")
    except ImportError:
        return False
    return True


@lru_cache(maxsize=MAX_WARNINGS)
def warn_once(text: str) -> None:
    """Logs what is assumed about a model or its tokens, once for each text."""
    # The text is the message itself: logs without content omit the arguments of messages.
    _log.warning(text)


_Key = TypeVar("_Key")
_LoadedValue = TypeVar("_LoadedValue")
_load_lock = Lock()


def _load_locked(load: Callable[[_Key], _LoadedValue], key: _Key) -> _LoadedValue:
    # Without the lock, concurrent first calls would each load the vocabulary.
    with _load_lock:
        return load(key)


@cache
def _vocabulary_encoder(vocabulary: str) -> Encode:
    from splintr import Tokenizer

    # `encode_ordinary`, because a special token that is spelled out in a text is still plain text.
    return Tokenizer.from_pretrained(vocabulary).encode_ordinary


@cache
def _file_counter(path: Path) -> TokenCounter:
    try:
        from splintr import from_json_bytes

        data = path.read_bytes()
        encode = from_json_bytes(data).encode_ordinary
    except (ImportError, OSError, ValueError) as exc:
        raise UnknownTokenizer(f"The tokenizer {path} cannot be used: {exc}.") from exc
    digest = sha256(data).hexdigest()[:12]
    name, boundary_tokens = f"tokenizer.json@{digest}", len(encode(""))
    return _FileCounter(name, exact=True, path=path, encode=encode, boundary_tokens=boundary_tokens)


# Runs of one character class, roughly as tokenizers split them: the pattern, the minimum tokens of a run, and the
# tokens of each character. Fitted to o200k on the texts in the tests.
_CHAR_CLASSES: dict[str, tuple[str, float, float]] = {
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


def estimate_by_length(text: str) -> int:
    """Estimates tokens from the lengths of the runs of a text; errs upward."""
    total = 0.0
    for run in _run_pattern().finditer(text):
        _, min_tokens, tokens_per_char = _CHAR_CLASSES[run.lastgroup or "other"]
        total += max(min_tokens, tokens_per_char * (run.end() - run.start()))
    return ceil(total)


@cache
def _run_pattern() -> re.Pattern[str]:
    kinds = (f"(?P<{kind}>{pattern})" for kind, (pattern, _, _) in _CHAR_CLASSES.items())
    return re.compile("|".join(kinds), re.DOTALL)


COUNTED_TEXTS: Mapping[str, Mapping[str, int]] = {
    "cl100k_base": {
        "979ac93bbce9": 30,
        "5ecb511ec338": 14,
        "3d53c6c0e70e": 5,
        "03ca2c54d0be": 8,
        "8786bc7960c0": 17,
        "b70ebb7199d6": 15,
        "ca3dee54e767": 11,
        "e0434daf1a8f": 9,
        "c1ef1bce996a": 13,
        "a3017c11afc3": 25,
    },
    "o200k_base": {
        "979ac93bbce9": 30,
        "5ecb511ec338": 14,
        "3d53c6c0e70e": 5,
        "03ca2c54d0be": 8,
        "8786bc7960c0": 17,
        "b70ebb7199d6": 15,
        "ca3dee54e767": 11,
        "e0434daf1a8f": 9,
        "c1ef1bce996a": 13,
        "a3017c11afc3": 26,
    },
}
"""Tokens by vocabulary and digest of the text."""


def find_counted_text(vocabulary: str, text: str) -> int | None:
    """Tokens of the text in this vocabulary, or None if they are not in the table."""
    counts = COUNTED_TEXTS.get(vocabulary)
    return counts.get(digest_text(text)) if counts is not None else None


def digest_text(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
