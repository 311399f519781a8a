"""The cache file of model specs: same values as the table, only for the installed version of the table."""

import json
from pathlib import Path

import pytest

from quire.cli import model_spec_cache
from quire.cli.model_spec_cache import MAX_CACHED_MODELS, SpecCacheFile
from quire.view.model_specs import UNKNOWN_MODEL, ModelSpec, model_spec_for, use_spec_cache


@pytest.fixture(autouse=True)
def forget_specs():
    model_spec_for.cache_clear()
    yield
    model_spec_for.cache_clear()


@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5", "unknown"])
def test_a_second_process_reads_the_same_spec_from_the_file(tmp_path: Path, model: str):
    path = tmp_path / "cache" / "specs.json"
    with use_spec_cache(SpecCacheFile(path)):
        spec = model_spec_for(model)
    assert SpecCacheFile(path) == {model: spec}


def test_a_cached_spec_is_used_before_the_table(tmp_path: Path):
    cache = SpecCacheFile(tmp_path / "specs.json")
    cache["gpt-4o"] = ModelSpec(window=7)
    with use_spec_cache(cache):
        assert model_spec_for("gpt-4o").window == 7
    model_spec_for.cache_clear()
    assert model_spec_for("gpt-4o").window != 7


def test_another_version_of_the_table_empties_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "specs.json"
    SpecCacheFile(path)["gpt-4o"] = ModelSpec(window=7)
    monkeypatch.setattr(model_spec_cache, "_get_table_version", lambda: "1:2")
    assert SpecCacheFile(path) == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"table": null}', "\x00"])
def test_a_damaged_file_is_ignored_and_replaced(tmp_path: Path, text: str):
    path = tmp_path / "specs.json"
    path.write_text(text)
    cache = SpecCacheFile(path)
    assert cache == {}
    cache["unknown"] = UNKNOWN_MODEL
    assert json.loads(path.read_text())["models"] == {"unknown": {}}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    SpecCacheFile(tmp_path / "file" / "specs.json")["unknown"] = UNKNOWN_MODEL


def test_the_file_is_bounded(tmp_path: Path):
    cache = SpecCacheFile(tmp_path / "specs.json")
    for number in range(MAX_CACHED_MODELS + 5):
        cache[f"model-{number}"] = UNKNOWN_MODEL
    assert len(cache) == len(SpecCacheFile(tmp_path / "specs.json")) == MAX_CACHED_MODELS
