"""A sentence encoder on this machine: any ONNX model in a folder with its `tokenizer.json`, run by onnxruntime.

A contextual encoder finds paraphrases that a static model misses, and takes about a hundred times its time. So it is an
`AsyncEmbedder`: messages are encoded by background jobs, and only a query is encoded while a request waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from quire.errors import InvalidConfiguration, MissingExtra
from quire.llm.embeddings import normalize_rows
from quire.model.base import replace_lone_surrogates

if TYPE_CHECKING:
    from quire.llm.embeddings import Vectors

ONNX_PREFIX = "onnx:"
"""Begins the setting `embeddings` that names the folder of an encoder."""
MAX_ENCODED_TOKENS = 256
"""Tokens of a text that are encoded. Sentence encoders are trained on fewer."""
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

        ids: list[list[int]] = []
        for text in texts:
            text = replace_lone_surrogates(text[:MAX_ENCODED_CHARS])
            # The vector of an empty text is zero, without the tokens that the tokenizer adds around it.
            ids.append(self._tokenizer.encode(text).ids if text.strip() else [])
        # Texts that are not empty, by length, so that a batch has little padding.
        batches: list[list[int]] = [[]]
        for index in sorted((index for index, each in enumerate(ids) if each), key=lambda index: len(ids[index])):
            size = len(batches[-1])
            if size == MAX_BATCH_TEXTS or (size and (size + 1) * len(ids[index]) > MAX_BATCH_TOKENS):
                batches.append([])
            batches[-1].append(index)
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for batch in filter(None, batches):
            rows[batch] = self._run([ids[index] for index in batch])
        return normalize_rows(rows)

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
        # A model is identified by its size, its beginning and its end: vectors of two models are never compared.
        size = model.stat().st_size
        with model.open("rb") as file:
            head = file.read(_DIGEST_BYTES)
            file.seek(max(0, size - _DIGEST_BYTES))
            digest = sha256(str(size).encode() + head + file.read()).hexdigest()[:8]
        return OnnxEncoder(session, tokenizer, name=f"{folder.name}-{digest}")
    except Exception as exc:
        raise InvalidConfiguration(f"The encoder in {folder} cannot be used: {exc}") from exc
