"""From a command's options to an open engine: settings from files, the environment and options, then what they name.

The command line is an entry point: here, and nowhere below, the environment is read.
"""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli import places
from quire.settings.sources import Layer, Loaded, environment_layers, file_layer, loaded, option_layer

if TYPE_CHECKING:
    from quire.engine import Engine
    from quire.llm import Model
    from quire.llm.embeddings import Embedder
    from quire.settings import Settings


@dataclass(frozen=True, slots=True)
class Options:
    """What every command takes."""

    given: tuple[str, ...] = ()
    """`name=value`, from `--set`."""


def setting_layers(options: Options) -> list[Layer]:
    """From the least to the most particular: the user's file, the project's, the environment, the options."""
    project = places.project_settings(Path.cwd())
    files = [places.user_settings(os.environ), *([project] if project is not None else [])]
    return [*map(file_layer, files), *environment_layers(os.environ), option_layer(options.given)]


def settings_from(options: Options) -> Loaded:
    return loaded(setting_layers(options))


def database_url(settings: "Settings") -> str:
    return settings.database_url or places.default_database(os.environ)


@asynccontextmanager
async def opened(options: Options) -> AsyncGenerator["Engine"]:
    """The engine that the settings describe. Models are not asked anything by opening it."""
    from quire.engine import open_engine

    settings = settings_from(options).settings
    url = database_url(settings)
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    async with open_engine(
        url,
        settings=settings,
        agent=settings.agent,
        vault=settings.vault,
        summarizer=summarizer_from(settings),
        embedder=await embedder_from(settings),
        **_by_hand(options),
    ) as engine:
        yield engine


def _by_hand(options: Options) -> dict[str, Any]:
    """Settings that go before what the agent's file says, because somebody just typed them."""
    given = option_layer(options.given).values
    return {name: value for name, value in given.items() if name not in ("agent", "vault", "summarizer")}


def model_from(settings: "Settings") -> "Model":
    """The model that answers; which key it needs, its provider says when it is asked."""
    from quire.llm import model_named

    return model_named(settings.model, base_url=settings.base_url)


def summarizer_from(settings: "Settings") -> "Model | None":
    if settings.summarizer is None:
        return None
    from quire.llm import model_named

    return model_named(settings.summarizer, base_url=settings.base_url)


async def embedder_from(settings: "Settings") -> "Embedder | None":
    if settings.embeddings is None:
        return None
    if settings.embeddings == "local":
        from quire.llm.embeddings import local_embedder

        return local_embedder()
    from quire.llm.endpoint import endpoint_embedder

    return await endpoint_embedder(settings.embeddings, settings.embeddings_model or "default")


def as_options(pairs: Sequence[str]) -> Options:
    return Options(tuple(pairs))
