"""A sentence encoder on this machine: any ONNX model in a folder with its `tokenizer.json`, run by onnxruntime.

A contextual encoder finds paraphrases that a static model misses, and takes about a hundred times its time. So it is an
`AsyncEmbedder`: messages are encoded by background jobs, and only a query is encoded while a request waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from quire.errors import InvalidConfiguration, MissingExtra
from quire.llm.embeddings import normalize_rows
from quire.model.text import replace_lone_surrogates

if TYPE_CHECKING:
    from quire.llm.embeddings import Vectors

ONNX_PREFIX = "onnx:"
"""Begins the setting `embeddings` that names the folder of an encoder."""
MAX_ENCODED_TOKENS = 256
"""Tokens of a text that are encoded; sentence encoders are trained on fewer."""
MAX_ENCODED_CHARS = 4_000
"""Characters of a text that are tokenized."""
MAX_BATCH_TEXTS, MAX_BATCH_TOKENS = 32, 4_096
"""Texts of one run of the model, and their tokens with padding, which bound its memory."""
ENCODER_THREADS = 1
"""Threads of one run of the model: the other cores belong to requests."""
_MODEL_PATHS = ("model.onnx", "onnx/model.onnx")
_POOLED_OUTPUT = "sentence_embedding"
_DIGEST_BYTES = 1 << 20


class OnnxEncoder:
    """Mean of the token vectors of a text, in unit length. All dimensions are stored: they cannot be truncated."""

    def __init__(self, session: Any, tokenizer: Any, *, name: str) -> None:
        self._session, self._tokenizer = session, tokenizer
        self._inputs = {each.name for each in session.get_inputs()}
        outputs = [each.name for each in session.get_outputs()]
        self._output: str = _POOLED_OUTPUT if _POOLED_OUTPUT in outputs else outputs[0]
        self._lock = Lock()
        self.dimensions = self._run([[0]]).shape[1]
        self.stored_dimensions = self.dimensions
        self.name = f"{name}-{self.dimensions}"

    async def embed_async(self, texts: Sequence[str]) -> Vectors:
        return await asyncio.to_thread(self.embed, texts)

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        ids = [self._tokenize(text) for text in texts]
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for batch in _split_batches([len(each) for each in ids]):
            rows[batch] = self._run([ids[index] for index in batch])
        return normalize_rows(rows)

    def _tokenize(self, text: str) -> list[int]:
        text = replace_lone_surrogates(text[:MAX_ENCODED_CHARS])
        # The vector of an empty text is zero, not that of the tokens around it.
        return self._tokenizer.encode(text).ids if text.strip() else []

    def _run(self, ids: Sequence[Sequence[int]]) -> Vectors:
        import numpy as np

        mask = np.zeros((len(ids), max(map(len, ids))), dtype=np.int64)
        tokens = np.zeros_like(mask)
        for row, each in enumerate(ids):
            tokens[row, : len(each)], mask[row, : len(each)] = each, 1
        inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
        with self._lock:
            [output] = self._session.run(
                [self._output], {name: value for name, value in inputs.items() if name in self._inputs}
            )
        if output.ndim == 2:
            return output
        weights = mask[..., np.newaxis].astype(np.float32)
        return (output * weights).sum(axis=1) / weights.sum(axis=1)


def _split_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Positions of the texts that are not empty, by length, so that a batch has little padding."""
    batch: list[int] = []
    for position in sorted((each for each, length in enumerate(lengths) if length), key=lengths.__getitem__):
        if batch and (len(batch) == MAX_BATCH_TEXTS or (len(batch) + 1) * lengths[position] > MAX_BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


_load_lock = Lock()


def load_onnx_encoder(folder: str | Path) -> OnnxEncoder:
    """Loads the encoder of a folder with `model.onnx` and `tokenizer.json`, once per process."""
    with _load_lock:
        return _load_folder(Path(folder).expanduser().resolve())


@cache
def _load_folder(folder: Path) -> OnnxEncoder:
    try:
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
        from tokenizers import Tokenizer
    except ImportError as exc:
        raise MissingExtra(extra="encoder", feature="A sentence encoder on this machine") from exc
    model = next((folder / path for path in _MODEL_PATHS if (folder / path).is_file()), None)
    if model is None or not (folder / "tokenizer.json").is_file():
        raise InvalidConfiguration(
            f"The folder {folder} has no ONNX encoder; it needs the files model.onnx and tokenizer.json."
        )
    runtime = cast(Any, onnxruntime)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = ENCODER_THREADS
    options.log_severity_level = 4
    # Both libraries raise plain exceptions of their own.
    try:
        session = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(MAX_ENCODED_TOKENS)
        tokenizer.no_padding()
        return OnnxEncoder(session, tokenizer, name=f"{folder.name}-{_digest(model)}")
    except Exception as exc:
        raise InvalidConfiguration(f"The encoder in {folder} cannot be used: {exc}") from exc


def _digest(model: Path) -> str:
    """Identifies a model by its size, its beginning and its end, so that vectors of another are never compared."""
    size = model.stat().st_size
    with model.open("rb") as file:
        head = file.read(_DIGEST_BYTES)
        file.seek(max(0, size - _DIGEST_BYTES))
        return sha256(str(size).encode() + head + file.read()).hexdigest()[:8]
