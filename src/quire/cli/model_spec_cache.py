"""Cache file of looked-up model specs, so that a command need not import the table of public models.

The file is valid for one version of the table: another size or modification time of the table's module empties it. A
cache that cannot be read or written is no error.
"""

import json
import os
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quire.view.model_specs import ModelSpec

MAX_CACHED_MODELS = 100
"""Models in the file; further ones are looked up in the table."""
_PRICES = ("input_price", "output_price", "cache_read_price", "cache_write_price")


class SpecCacheFile(MutableMapping[str, ModelSpec]):
    """Specs by the name of the model. A new one is written at once."""

    def __init__(self, path: Path) -> None:
        self._path, self._table_version = path, _get_table_version()
        self._specs = self._read()

    def __getitem__(self, model: str) -> ModelSpec:
        return self._specs[model]

    def __setitem__(self, model: str, spec: ModelSpec) -> None:
        if self._table_version is None or len(self._specs) >= MAX_CACHED_MODELS:
            return
        self._specs[model] = spec
        self._write()

    def __delitem__(self, model: str) -> None:
        del self._specs[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def _read(self) -> dict[str, ModelSpec]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["table"] != self._table_version:
                return {}
            specs: dict[str, ModelSpec] = {}
            for model, fields in document["models"].items():
                values: dict[str, Any] = {
                    name: Decimal(value) if name in _PRICES else value for name, value in fields.items()
                }
                specs[model] = ModelSpec(**values)
            return specs
        except (OSError, ValueError, TypeError, LookupError, AttributeError, InvalidOperation):
            return {}

    def _write(self) -> None:
        models = {
            model: {
                name: str(value) if name in _PRICES else value
                for name, value in spec._asdict().items()
                if value is not None
            }
            for model, spec in self._specs.items()
        }
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps({"table": self._table_version, "models": models}), encoding="utf-8")
            partial.replace(self._path)
        except OSError:
            with suppress(OSError):
                partial.unlink()


def _get_table_version() -> str | None:
    """Identifies the installed table without importing it; None if it is not installed."""
    package = find_spec("genai_prices")
    if package is None or package.origin is None:
        return None
    try:
        status = Path(package.origin).with_name("data.py").stat()
    except OSError:
        return None
    return f"{status.st_size}:{status.st_mtime_ns}"
