"""Vectors of messages: quantized to four bits per dimension for storage, to one bit for a fast first selection.

Quantized vectors are small integers, and a query is quantized too, so that a similarity is a sum of integers: exact,
and the same on every machine.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
PackedArray = NDArray[np.uint8]
SketchArray = NDArray[np.uint64]

MAX_STATIC_DIMENSIONS = 128
"""Leading dimensions that are stored of a static model's vectors: it is trained to be truncated."""
MAX_VECTOR_DIMENSIONS = 1_024
"""Leading dimensions that are stored of any vector."""

_NIBBLE_SCALE = 7
_QUERY_SCALE = 127
_ZERO_BYTE = _NIBBLE_SCALE | _NIBBLE_SCALE << 4


def truncate_vectors(rows: FloatArray, dimensions: int = MAX_STATIC_DIMENSIONS) -> FloatArray:
    """Truncates vectors to their leading dimensions and normalizes them again. A row of zeros stays zero."""
    leading = np.asarray(rows, dtype=np.float32)[:, :dimensions]
    lengths = np.linalg.norm(leading, axis=1, keepdims=True)
    return np.divide(leading, lengths, out=np.zeros_like(leading), where=lengths > 0)


def packed_width(dimensions: int) -> int:
    """Bytes of a packed vector."""
    return (dimensions + 1) // 2


def pack_vectors(vectors: FloatArray) -> PackedArray:
    """Quantizes to half a byte per dimension, in steps of a seventh of the row's largest value."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    steps = (np.rint(scaled * _NIBBLE_SCALE) + _NIBBLE_SCALE).astype(np.uint8)
    if steps.shape[1] % 2:
        steps = np.pad(steps, ((0, 0), (0, 1)), constant_values=_NIBBLE_SCALE)
    return steps[:, ::2] | (steps[:, 1::2] << np.uint8(4))


def pack_zeros(count: int, dimensions: int) -> PackedArray:
    """Packed vectors of zeros, for messages without one."""
    return np.full((count, packed_width(dimensions)), _ZERO_BYTE, dtype=np.uint8)


def unpack_steps(packed: PackedArray, dimensions: int) -> FloatArray:
    """The quantized vectors: integers from -7 to 7."""
    steps = np.empty((len(packed), 2 * packed.shape[1]), dtype=np.float32)
    steps[:, ::2], steps[:, 1::2] = packed & 15, packed >> 4
    steps -= _NIBBLE_SCALE
    return steps[:, :dimensions]


def unpack_vectors(packed: PackedArray, dimensions: int) -> FloatArray:
    """Unit vectors; zeros for a packed vector of zeros."""
    return truncate_vectors(unpack_steps(packed, dimensions), dimensions)


def compute_similarities(packed: PackedArray, query: FloatArray) -> FloatArray:
    """Cosines of packed vectors and a query of their dimensions, or 0 for a vector of zeros."""
    steps, query_steps = unpack_steps(packed, len(query)), quantize_query(query)
    lengths = np.sqrt(np.einsum("ij,ij->i", steps, steps) * max(1.0, float(query_steps @ query_steps)))
    return np.divide(steps @ query_steps, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def quantize_query(query: FloatArray) -> FloatArray:
    """Quantizes to 255 levels: integers, so that their products with steps add up without rounding."""
    largest = float(np.abs(query).max(initial=0.0))
    return np.rint(query * (_QUERY_SCALE / largest)).astype(np.float32) if largest else np.zeros_like(query)


def make_sketches(packed: PackedArray) -> SketchArray:
    """One bit per dimension, its sign, in words of 64 bits."""
    signs = np.empty((len(packed), 2 * packed.shape[1]), dtype=np.bool_)
    signs[:, ::2], signs[:, 1::2] = (packed & 15) > _NIBBLE_SCALE, (packed >> 4) > _NIBBLE_SCALE
    bits = np.packbits(signs, axis=1)
    padded = np.zeros((len(packed), sketch_words(2 * packed.shape[1]) * 8), dtype=np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.view(np.uint64)


def sketch_words(dimensions: int) -> int:
    """Words of 64 bits of a sketch."""
    return (dimensions + 63) // 64


def count_differing_bits(sketches: SketchArray, query: SketchArray) -> NDArray[np.uint16]:
    """Hamming distance of each sketch and the query's."""
    distances = np.zeros(len(sketches), dtype=np.uint16)
    for word in range(sketches.shape[1]):
        distances += np.bitwise_count(sketches[:, word] ^ query[word])
    return distances
