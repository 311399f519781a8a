"""Opens an engine for a command: loads settings from files, environment and options, then builds the models.

The command line is an entry point, so the environment is read here; the library below never reads it.
"""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli import paths
from quire.settings.sources import (
    LoadedSettings,
    SettingsLayer,
    load_settings,
    parse_options,
    read_environment,
    read_settings_file,
)

if TYPE_CHECKING:
    from quire.engine import Engine
    from quire.llm import Model
    from quire.llm.deferred_model import ModelBuilder
    from quire.llm.embeddings import Embedder
    from quire.settings import Settings


@dataclass(frozen=True, slots=True)
class SettingOverrides:
    """Settings from the command's options."""

    pairs: tuple[str, ...] = ()
    """`name=value` strings of `--set`."""


def load_setting_layers(overrides: SettingOverrides) -> list[SettingsLayer]:
    """Loads the layers, lowest precedence first: user's file, project's file, environment, options."""
    project = paths.find_project_settings_path(Path.cwd())
    files = [paths.get_user_settings_path(os.environ), *([project] if project is not None else [])]
    return [*map(read_settings_file, files), *read_environment(os.environ), parse_options(overrides.pairs)]


def load_cli_settings(overrides: SettingOverrides) -> LoadedSettings:
    return load_settings(load_setting_layers(overrides))


def resolve_database_url(settings: "Settings") -> str:
    return settings.database_url or paths.get_default_database_url()


@asynccontextmanager
async def open_engine_from_settings(overrides: SettingOverrides) -> AsyncGenerator["Engine"]:
    """Opens the engine that the settings describe. Opening sends no model request."""
    from quire.cli.model_spec_cache import SpecCacheFile
    from quire.engine import open_engine
    from quire.view.model_specs import use_spec_cache

    settings = load_cli_settings(overrides).settings
    url = resolve_database_url(settings)
    with use_spec_cache(SpecCacheFile(paths.get_spec_cache_path())):
        async with open_engine(
            url,
            settings=settings,
            agent=settings.agent,
            vault=settings.vault,
            summarizer=build_summarizer(settings),
            embedder=await build_embedder(settings),
            **_select_engine_overrides(overrides),
        ) as engine:
            yield engine.with_changes(runs_turns=True)


def _select_engine_overrides(overrides: SettingOverrides) -> dict[str, Any]:
    """Selects the overrides that must win over the agent's file, because the user has just typed them."""
    values = parse_options(overrides.pairs).values
    return {name: value for name, value in values.items() if name not in ("agent", "vault", "summarizer")}


def build_model(settings: "Settings") -> "Model":
    """Builds the model that answers. A missing API key is reported by its provider."""
    from quire.llm import get_model

    return get_model(settings.model, base_url=settings.base_url)


def build_summarizer(settings: "Settings") -> "Model | ModelBuilder | None":
    """The named summarizer, or a function that returns the model that answers; None if summaries are extracts."""
    from quire.llm import get_upstream_model
    from quire.llm.deferred_model import DeferredModel
    from quire.settings.schema import EXTRACT_SUMMARIZER

    def build_deferred(name: str) -> "Model":
        return DeferredModel(name, partial(get_upstream_model, name, settings, os.environ))

    if settings.summarizer == EXTRACT_SUMMARIZER:
        return None
    return build_deferred if settings.summarizer is None else build_deferred(settings.summarizer)


async def build_embedder(settings: "Settings") -> "Embedder | None":
    if settings.embeddings is None:
        return None
    if settings.embeddings == "local":
        from quire.llm.embeddings import load_local_embedder

        return load_local_embedder()
    from quire.llm.onnx_encoder import ONNX_PREFIX, load_onnx_encoder

    if settings.embeddings.startswith(ONNX_PREFIX):
        return load_onnx_encoder(settings.embeddings.removeprefix(ONNX_PREFIX))
    from quire.llm.embedding_endpoint import connect_endpoint_embedder

    return await connect_endpoint_embedder(settings.embeddings, settings.embeddings_model or "default")


def to_overrides(pairs: Sequence[str]) -> SettingOverrides:
    return SettingOverrides(tuple(pairs))
