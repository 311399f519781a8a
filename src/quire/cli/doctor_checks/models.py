"""Checks of the model: credentials, reachability, context window, token counts; and of the vault."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from quire.cli.doctor_checks.findings import Finding, report_note, report_ok, report_problem
from quire.cli.doctor_checks.model_list import ModelList, fetch_model_list
from quire.cli.doctor_checks.setup import DoctorSetup
from quire.cli.init import PROVIDER_KEYS
from quire.errors import QuireError

MAX_SUGGESTED_MODELS = 3
MAX_COUNT_DIFFERENCE = 8
"""Tokens by which our count of a short request may differ from the provider's."""
TEST_QUESTION = "Reply with the word OK."
_PROVIDER_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}
_CHOOSE_MODEL = "run `quire init` to choose another model"


class Endpoint(NamedTuple):
    """Where a model is called, and the variable that has the API key."""

    base_url: str | None
    """None for a provider whose address is not known here."""
    key_variable: str | None
    model: str
    is_anthropic: bool = False


def check_model(setup: DoctorSetup) -> list[Finding]:
    """Whether the model's server answers, takes the key and lists the model, and what window it reports."""
    endpoint = find_endpoint(setup)
    if isinstance(endpoint, Finding):
        return [endpoint]
    if setup.offline or endpoint.base_url is None:
        detail = f"{endpoint.model}: {endpoint.key_variable or 'no key'}; the server was not contacted"
        return [report_note("model", detail), *_check_window(setup, None)]
    host = urlsplit(endpoint.base_url).netloc
    try:
        models = fetch_model_list(endpoint.base_url, _build_headers(endpoint, setup.environ))
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        detail = f"{host} does not answer: {cause}."
        return [report_problem("model", detail, f"Start the server, correct `base_url`, or {_CHOOSE_MODEL}.")]
    return _judge_list(setup, endpoint, models)


def _judge_list(setup: DoctorSetup, endpoint: Endpoint, models: ModelList) -> list[Finding]:
    host, names = urlsplit(endpoint.base_url or "").netloc, list(models.windows)
    if models.status in (401, 403):
        source = f"in {endpoint.key_variable}" if endpoint.key_variable else "(none was sent)"
        detail = f"{host} refuses the API key {source}: HTTP {models.status}."
        remedy = "Set that variable to a valid key" if endpoint.key_variable else "Name its variable in `api_key_env`"
        return [report_problem("model", detail, f"{remedy}, or {_CHOOSE_MODEL}.")]
    if models.status >= 500:
        return [report_problem("model", f"{host} answers with HTTP {models.status}.", "Check its log, and retry.")]
    variants = {endpoint.model, endpoint.model.partition(":")[2]}
    listed = next((name for name in names if name in variants or name.removesuffix(":latest") in variants), None)
    if names and listed is None:
        others = ", ".join(names[:MAX_SUGGESTED_MODELS])
        remedy = f"Choose one that it lists, such as {others}: `quire config set model NAME`."
        return [report_problem("model", f"{host} does not list the model {endpoint.model}.", remedy)]
    reported = models.windows[listed] if listed is not None else None
    return [report_ok("model", f"{endpoint.model} at {host}"), *_check_window(setup, reported)]


def find_endpoint(setup: DoctorSetup) -> Endpoint | Finding:
    """The endpoint of the model in the settings, or the reason why it cannot be called."""
    from quire.settings.schema import upstream_for

    model, environ = setup.settings.model, setup.environ
    upstream = upstream_for(setup.settings, model)
    if upstream is None:
        return _find_provider(model, environ)
    if upstream.credentials == "client":
        return report_note("model", f"{model}: only clients have credentials for {urlsplit(upstream.base_url).netloc}.")
    if upstream.api_key_env is not None and not environ.get(upstream.api_key_env):
        detail = f"The key of {model} is missing: {upstream.api_key_env} is not set."
        return report_problem("model", detail, f"Set {upstream.api_key_env}, or {_CHOOSE_MODEL}.")
    is_anthropic = set(upstream.speaks) == {"messages"}
    base_url = f"{upstream.base_url.rstrip('/').removesuffix('/v1')}/v1" if is_anthropic else upstream.base_url
    return Endpoint(base_url, upstream.api_key_env, upstream.model or model, is_anthropic)


def _find_provider(model: str, environ: Mapping[str, str]) -> Endpoint | Finding:
    """A provider that is known by name needs a key in the environment."""
    from quire.view.model_specs import is_local_model
    from quire.view.wire_formats import provider_for

    if is_local_model(model):
        return Endpoint(None, None, model)
    prefix = model.partition(":")[0] if ":" in model else provider_for(model)
    variables = [key.variable for key in PROVIDER_KEYS if key.model.partition(":")[0] == prefix.partition("-")[0]]
    variable = next((each for each in variables if environ.get(each, "").strip()), None)
    if variables and variable is None:
        detail = f"No key for the model {model}: {' or '.join(variables)} is not set."
        remedy = f"Set it, start a local server and run `quire init --force`, or {_CHOOSE_MODEL}."
        return report_problem("model", detail, remedy)
    provider = prefix.partition("-")[0]
    base_url = environ.get(f"{provider.upper()}_BASE_URL") or _PROVIDER_URLS.get(provider)
    if provider == "anthropic" and base_url is not None:
        base_url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1"
    return Endpoint(base_url, variable, model, provider == "anthropic")


def _build_headers(endpoint: Endpoint, environ: Mapping[str, str]) -> dict[str, str]:
    key = environ.get(endpoint.key_variable) if endpoint.key_variable is not None else None
    if endpoint.is_anthropic:
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
    return {"authorization": f"Bearer {key}"} if key else {}


def _check_window(setup: DoctorSetup, reported: int | None) -> list[Finding]:
    """Compares the window that requests are fitted to with the one that the server reports."""
    from quire.engine import EngineConfig

    try:
        config = EngineConfig.create(setup.settings)
        window, problem = config.policy.window, config.model_problem
    except QuireError as error:
        return [report_problem("window", str(error), "Correct the setting that it names.")]
    remedy = f'Set `window = {reported}` under `[models."{setup.settings.model}"]`, or lower `context_limit`.'
    if reported is not None and window > reported:
        detail = f"Requests are fitted to {window:,} tokens, but the server's window is {reported:,}."
        return [report_problem("window", detail, remedy)]
    if problem is not None and reported is None:
        statement, _, advice = problem.partition(". Set ")
        return [report_note("window", f"{statement}.", f"Set {advice}")]
    source = f"the server reports {reported:,}" if reported is not None else "the server reports none"
    return [report_ok("window", f"{window:,} tokens; {source}")]


def check_counts(setup: DoctorSetup) -> list[Finding]:
    """Sends one short request, if the user wants that, and compares the provider's count of its tokens with ours."""
    if not setup.sends_request or setup.offline:
        return []
    try:
        counted, reported = asyncio.run(_count_request(setup))
    except QuireError as error:
        return [report_problem("counts", f"The request failed: {error}", "Correct the model's settings, and retry.")]
    if not reported:
        return [report_note("counts", "The provider reports no usage, so counts cannot be compared.")]
    detail = f"{counted} tokens by our count, {reported} by the provider's"
    if abs(counted - reported) > MAX_COUNT_DIFFERENCE:
        remedy = f'Set `tokenizer` under `[models."{setup.settings.model}"]` to the vocabulary of this model.'
        return [report_problem("counts", f"{detail}.", remedy)]
    return [report_ok("counts", detail)]


async def _count_request(setup: DoctorSetup) -> tuple[int, int]:
    """Our count of a request and the provider's. The conversation is in memory and is not stored."""
    from quire.engine import open_engine
    from quire.llm import get_upstream_model

    model = get_upstream_model(setup.settings.model, setup.settings, setup.environ)
    async with model, open_engine("sqlite:///:memory:", settings=setup.settings) as engine:
        conversation = await engine.conversation("doctor")
        counted = (await conversation.prepare(TEST_QUESTION)).manifest.total_tokens
        result = await conversation.send(TEST_QUESTION, model=model, max_steps=1)
        return counted, result.usage.input_tokens


def check_vault(setup: DoctorSetup) -> list[Finding]:
    if setup.settings.vault is None:
        return []
    folder = Path(setup.settings.vault).expanduser()
    try:
        with os.scandir(folder) as entries:
            next(iter(entries), None)
    except OSError as error:
        detail = f"The vault {folder} cannot be read: {error.strerror}."
        return [report_problem("vault", detail, "Create the folder, correct its permissions, or change `vault`.")]
    return [report_ok("vault", f"{folder} can be read")]
