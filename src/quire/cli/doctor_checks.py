"""Checks of `quire doctor`: each is a function of the set-up that returns its findings, and changes nothing."""

import asyncio
import errno
import json
import os
import platform
import shutil
import sqlite3
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from quire import __version__
from quire.cli.config import mask_password
from quire.cli.engine_setup import resolve_database_url
from quire.cli.hook import find_hook_commands, get_settings_path
from quire.cli.hook_client import AGENTS
from quire.cli.output import pluralize
from quire.cli.platforms import split_command
from quire.errors import QuireError
from quire.model.policy import WireFormatName
from quire.schemas.setup import FindingSchema
from quire.settings import Settings
from quire.wire.base import UNSPOKEN

if TYPE_CHECKING:
    from quire.wire.codec import Codec

EXTRA_MODULES = {
    "llm": "httpx2",
    "models": "genai_prices",
    "postgres": "psycopg",
    "vault": "yaml",
    "embeddings": "wordllama",
    "encoder": "onnxruntime",
    "mcp": "mcp",
    "server": "fastapi",
    "worker": "procrastinate",
    "sso": "joserfc",
}
"""A module by which an installed extra is recognized."""
PROBE_BYTES = 65_536
"""Bytes that are written to check that a file can grow."""
MAX_FILE_CHECK_SECONDS = 10.0
"""Seconds after which the check of an SQLite file ends."""
LOW_SPACE_BYTES = 100_000_000
MAX_LISTED_KEYS = 1_000
MAX_NAMED_DOUBLES = 3
_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

LIST_TIMEOUT_SECONDS = 5.0
MAX_LIST_BYTES = 4_000_000
_WINDOW_FIELDS = ("max_model_len", "context_length", "context_window", "loaded_context_length", "n_ctx")
"""Names of the window in the lists of vLLM, OpenRouter, Groq, LM Studio and llama.cpp."""
MAX_SUGGESTED_MODELS = 3
MAX_COUNT_DIFFERENCE = 8
"""Tokens by which our count of a short request may differ from the provider's."""
TEST_QUESTION = "Reply with the word OK."
_CHOOSE_MODEL = "run `quire init` to choose another model"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSetup:
    """The settings as far as they can be loaded, and the environment."""

    settings: Settings
    origins: Mapping[str, str]
    """Source of each setting that is set."""
    settings_error: str | None
    environ: Mapping[str, str]
    folder: Path
    offline: bool
    sends_request: bool

    @property
    def database_url(self) -> str:
        return resolve_database_url(self.settings)


def report_ok(check: str, detail: str) -> FindingSchema:
    return FindingSchema(check=check, status="ok", detail=detail)


def report_note(check: str, detail: str, remedy: str = "") -> FindingSchema:
    return FindingSchema(check=check, status="note", detail=detail, remedy=remedy)


def report_problem(check: str, detail: str, remedy: str) -> FindingSchema:
    return FindingSchema(check=check, status="problem", detail=detail, remedy=remedy)


def check_versions(setup: DoctorSetup) -> list[FindingSchema]:
    return [
        report_ok(
            "versions",
            f"quire {__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
            f"{platform.system()} {platform.release()} {platform.machine()}",
        )
    ]


def check_formats(setup: DoctorSetup) -> list[FindingSchema]:
    return [report_ok("formats", f"{', '.join(get_args(WireFormatName))}; not spoken: {UNSPOKEN}")]


def check_settings(setup: DoctorSetup) -> list[FindingSchema]:
    if setup.settings_error is not None:
        remedy = "Correct that source; `quire config list` then prints every setting and where it comes from."
        return [report_problem("settings", setup.settings_error, remedy)]
    sources = list(dict.fromkeys(setup.origins.values()))
    if not sources:
        return [
            report_note("settings", "No setting is set; the defaults apply.", "Run `quire init` to choose a model.")
        ]
    counts = {source: sum(each == source for each in setup.origins.values()) for source in sources}
    return [report_ok("settings", ", ".join(f"{count} from {source}" for source, count in counts.items()))]


def check_extras(setup: DoctorSetup) -> list[FindingSchema]:
    """The extras that are installed, and a problem for each one that a setting needs."""
    installed, settings = list_extras(), setup.settings
    needed = [("llm", "Calling a model")]
    if setup.database_url.startswith("postgres"):
        needed.append(("postgres", "A PostgreSQL database"))
    if settings.vault is not None:
        needed.append(("vault", "A vault"))
    if settings.embeddings == "local":
        needed.append(("embeddings", '`embeddings = "local"`'))
    elif settings.embeddings is not None and settings.embeddings.startswith("onnx:"):
        needed.append(("encoder", "A sentence encoder"))
    missing = [
        report_problem("extras", f"{feature} needs the extra {extra!r}.", f'Run `pip install "quire[{extra}]"`.')
        for extra, feature in needed
        if extra not in installed
    ]
    return missing or [report_ok("extras", f"installed: {', '.join(installed) or 'none'}")]


def list_extras() -> list[str]:
    return [extra for extra, module in EXTRA_MODULES.items() if find_spec(module) is not None]


def check_data_folder(setup: DoctorSetup) -> list[FindingSchema]:
    """Whether the folder of the SQLite file can be written, and has space."""
    path = _get_sqlite_path(setup.database_url)
    if path is None:
        return []
    folder = next((each for each in path.parents if each.exists()), path.parent)
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".quire-doctor-") as file:
            file.write(b"\0" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        if error.errno in _FULL_DISK_ERRORS:
            detail = f"The disk of {folder} is full, or a limit on its files is reached: {error.strerror}."
            remedy = "Free space, raise the limit, or set `database_url` to another disk."
        else:
            detail = f"{folder} cannot be written: {error.strerror}."
            access = f"Give yourself write access (`chmod u+rwx {folder}`)"
            remedy = f"{access}, or set `database_url` to a file in another folder."
        return [report_problem("data folder", detail, remedy)]
    if free < LOW_SPACE_BYTES:
        detail = f"{folder} has only {free // 1_000_000} MB free."
        return [report_problem("data folder", detail, "Free space on that disk, or set `database_url` to another one.")]
    return [report_ok("data folder", f"{folder} can be written, {free / 1e9:.1f} GB free")]


def check_database(setup: DoctorSetup) -> list[FindingSchema]:
    """Connects, compares the schema, and reads the state of keys and index. Nothing is created or migrated."""
    url, path = setup.database_url, _get_sqlite_path(setup.database_url)
    masked = mask_password(url)
    try:
        if path is not None and not path.exists():
            return [report_ok("database", f"{masked} will be created on first use")]
        from quire.db import migrate

        version, required = migrate.get_version_at_url(url), migrate.SCHEMA_VERSION
        if version != required:
            detail = f"{masked} has schema {version or 'none'}; this version of Quire needs {required}."
            is_newer = version is not None and version > required
            remedy = "Install the newer version of Quire that wrote it."
            return [
                report_problem(
                    "database", detail, remedy if is_newer else "Make a backup, then run `quire db upgrade`."
                )
            ]
        found = [report_ok("database", f"{masked}, schema {version}")]
        if path is not None:
            found.append(_check_file(path))
            if found[-1].status == "problem":
                return found
        return [*found, *asyncio.run(_check_contents(setup))]
    except (QuireError, OSError) as error:
        cause = " ".join(str(error).split()).replace(url, masked)
        remedy = (
            "Check that the file is a database of Quire and that you may read it; restore a backup if it is damaged."
            if path is not None
            else "Check that the server runs, and the host, role and password in `database_url`."
        )
        return [report_problem("database", f"{masked} cannot be opened: {cause}", remedy)]


def _check_file(path: Path) -> FindingSchema:
    """Reads every page, index and reference of the file, for a bounded time."""
    from quire.store.integrity import find_damages

    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False)) as file:
        timer = Timer(MAX_FILE_CHECK_SECONDS, file.interrupt)
        timer.start()
        damages = find_damages(file)
        timer.cancel()
    is_whole = "interrupted" not in damages
    damages = [each for each in damages if each != "interrupted"]
    if damages:
        more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
        return report_problem(
            "database file",
            f"{path} is damaged: {damages[0]}{more}.",
            "Restore a backup, or save what can be read with `sqlite3 FILE .recover`.",
        )
    if is_whole:
        return report_ok("database file", "every page, index and reference was checked")
    return report_note(
        "database file",
        f"{MAX_FILE_CHECK_SECONDS:g} s of checking found no damage; the file is larger than that.",
        "`quire verify --all` checks all of it.",
    )


async def _check_contents(setup: DoctorSetup) -> list[FindingSchema]:
    from quire.db.tenant_keys import TenantKeys
    from quire.model.ids import now
    from quire.store import SqlStore

    keys = TenantKeys.from_settings(setup.settings.encryption, setup.environ)
    async with SqlStore.open(setup.database_url, keys=keys) as store:
        index = (
            report_note(
                "search index",
                "The newest messages are not indexed yet.",
                "The next search indexes them; on a server, check that `quire worker` runs.",
            )
            if await store.message_index.has_unindexed()
            else report_ok("search index", "every message is indexed")
        )
        keys = await store.keys.list(limit=MAX_LISTED_KEYS)
        index = [index, *_name_doubles(await store.imports.list_doubles())]
    time = now()
    valid = [key for key in keys if key.is_valid_at(time)]
    others = f"{len(keys) - len(valid)} revoked or expired" if len(keys) > len(valid) else ""
    if not valid:
        # `quire run` creates a key for each run and revokes it.
        none = f"none is valid, {others}" if others else "none"
        return [*index, report_ok("API keys", f"{none}; only a server for several users needs them")]
    scopes = ", ".join(sorted({scope for key in valid for scope in key.scopes}))
    detail = f"{pluralize(len(valid), 'valid key')} with the scopes {scopes}"
    return [*index, report_ok("API keys", f"{detail}, {others}" if others else detail)]


def _name_doubles(doubles: Mapping[str, str]) -> list[FindingSchema]:
    """Sessions that are two conversations: one was imported, and the gateway recorded the other."""
    if not doubles:
        return []
    named = [f"{copy} and {recorded}" for copy, recorded in list(doubles.items())[:MAX_NAMED_DOUBLES]]
    more = f", and {len(doubles) - len(named):,} more" if len(doubles) > len(named) else ""
    sources = " or ".join(sorted({f"`quire import {copy.rpartition('-')[0]} --dry-run`" for copy in doubles}))
    return [
        report_note(
            "sessions",
            f"{len(doubles):,} imported and recorded as two conversations: {', '.join(named)}{more}.",
            f"{sources} says which of them it would merge; without --dry-run it merges them.",
        )
    ]


def _get_sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL; None for another database or one in memory."""
    if not url.startswith("sqlite:///") or ":memory:" in url:
        return None
    return Path(url.removeprefix("sqlite:///").partition("?")[0]).absolute()


class Endpoint(NamedTuple):
    """Where a model is called, and the variable that has the API key."""

    base_url: str | None
    """None for a provider whose address is not known here."""
    key_variable: str | None
    model: str
    wire_format: WireFormatName = "chat"


class ModelList(NamedTuple):
    """The answer of a server; without models if it has no list."""

    status: int
    windows: Mapping[str, int | None]
    """Context window of each model by name; None where the server does not report it."""


def check_model(setup: DoctorSetup) -> list[FindingSchema]:
    """Whether the model's server answers, takes the key and lists the model, and what window it reports."""
    endpoint = find_endpoint(setup)
    if isinstance(endpoint, FindingSchema):
        return [endpoint]
    if setup.offline or endpoint.base_url is None:
        detail = f"{endpoint.model}: {endpoint.key_variable or 'no key'}; the server was not contacted"
        return [report_note("model", detail), *_check_window(setup, None)]
    host = urlsplit(endpoint.base_url).netloc
    key = setup.environ.get(endpoint.key_variable) if endpoint.key_variable is not None else None
    from quire.wire.codecs import CODECS

    try:
        models = fetch_model_list(endpoint.base_url, key, CODECS[endpoint.wire_format])
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        detail = f"{host} does not answer: {cause}."
        return [report_problem("model", detail, f"Start the server, correct `base_url`, or {_CHOOSE_MODEL}.")]
    return _judge_list(setup, endpoint, models)


def _judge_list(setup: DoctorSetup, endpoint: Endpoint, models: ModelList) -> list[FindingSchema]:
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


def find_endpoint(setup: DoctorSetup) -> Endpoint | FindingSchema:
    """The endpoint of the model in the settings, or the reason why it cannot be called."""
    from quire.settings.schema import upstream_for
    from quire.wire.codecs import choose_only_format

    model, environ = setup.settings.model, setup.environ
    upstream = upstream_for(setup.settings, model)
    if upstream is None:
        found = _find_provider(model, environ)
        if "model" in setup.origins or isinstance(found, Endpoint):
            return found
        detail = "No model is chosen. Only `quire chat`, `quire ask` and written summaries need one."
        return report_note("model", detail, "Run `quire init` to choose one.")
    if upstream.credentials == "client":
        return report_note("model", f"{model}: only clients have credentials for {urlsplit(upstream.base_url).netloc}.")
    if upstream.api_key_env is not None and not environ.get(upstream.api_key_env):
        detail = f"The key of {model} is missing: {upstream.api_key_env} is not set."
        return report_problem("model", detail, f"Set {upstream.api_key_env}, or {_CHOOSE_MODEL}.")
    wire_format = choose_only_format(upstream.speaks).name
    return Endpoint(upstream.base_url, upstream.api_key_env, upstream.model or model, wire_format)


def _find_provider(model: str, environ: Mapping[str, str]) -> Endpoint | FindingSchema:
    """A provider that is known by name needs a key in the environment."""
    from quire.llm.providers import PROVIDERS
    from quire.wire import infer_wire_format

    wire_format = infer_wire_format(model)
    name = model.partition(":")[0].partition("-")[0]
    if ":" not in model:
        name = "anthropic" if wire_format == "messages" else "openai"
    provider = PROVIDERS.get(name)
    if provider is None:
        return Endpoint(None, None, model)
    variable = next((each for each in provider.key_variables if environ.get(each, "").strip()), None)
    if provider.key_variables and variable is None:
        detail = f"No key for the model {model}: {' or '.join(provider.key_variables)} is not set."
        remedy = f"Set it, start a local server and run `quire init --force`, or {_CHOOSE_MODEL}."
        return report_problem("model", detail, remedy)
    base_url = environ.get(f"{name.upper()}_BASE_URL") or provider.base_url
    return Endpoint(base_url, variable, model, wire_format)


def _check_window(setup: DoctorSetup, reported: int | None) -> list[FindingSchema]:
    """Compares the window that requests are fitted to with the one that the server reports."""
    from quire.engine import EngineConfig

    try:
        config = EngineConfig.create(setup.settings)
        window, problem = config.policy.window, config.model_problem
    except QuireError as error:
        return [report_problem("window", str(error), "Correct the setting that it names.")]
    remedy = f'Set `window = {reported}` under `[models."{setup.settings.model}"]`, or lower `context_limit`.'
    if reported is not None and not config.policy.has_known_window:
        detail = f"No table lists the window of {setup.settings.model}, and the server's is {reported:,} tokens."
        return [report_problem("window", detail, remedy)]
    if reported is not None and window > reported:
        detail = f"Requests are fitted to {window:,} tokens, but the server's window is {reported:,}."
        return [report_problem("window", detail, remedy)]
    if problem is not None and reported is None:
        statement, _, advice = problem.partition(". Set ")
        return [report_note("window", f"{statement}.", f"Set {advice}")]
    source = f"the server reports {reported:,}" if reported is not None else "the server reports none"
    return [report_ok("window", f"{window:,} tokens; {source}")]


def check_counts(setup: DoctorSetup) -> list[FindingSchema]:
    """Sends one short request, if the user wants that, and compares the provider's count of its tokens with ours."""
    if not setup.sends_request or setup.offline:
        return []
    from quire.engine import open_engine
    from quire.llm import get_upstream_model

    async def count_request() -> tuple[int, int]:
        """Our count of a request and the provider's. The conversation is in memory and is not stored."""
        model = get_upstream_model(setup.settings.model, setup.settings, setup.environ)
        settings = setup.settings.model_copy(update={"encryption": None})
        async with model, open_engine("sqlite:///:memory:", settings=settings) as engine:
            conversation = await engine.conversation("doctor")
            counted = (await conversation.prepare(TEST_QUESTION)).manifest.total_tokens
            result = await conversation.send(TEST_QUESTION, model=model, max_steps=1)
            return counted, result.usage.input_tokens

    try:
        counted, reported = asyncio.run(count_request())
    except QuireError as error:
        return [report_problem("counts", f"The request failed: {error}", "Correct the model's settings, and retry.")]
    if not reported:
        return [report_note("counts", "The provider reports no usage, so counts cannot be compared.")]
    detail = f"{counted} tokens by our count, {reported} by the provider's"
    if abs(counted - reported) > MAX_COUNT_DIFFERENCE:
        remedy = f'Set `tokenizer` under `[models."{setup.settings.model}"]` to the vocabulary of this model.'
        return [report_problem("counts", f"{detail}.", remedy)]
    return [report_ok("counts", detail)]


def check_vault(setup: DoctorSetup) -> list[FindingSchema]:
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


def fetch_model_list(base_url: str, key: str | None, codec: "Codec") -> ModelList:
    """Raises `OSError` if the server does not answer, and `ValueError` for a URL that cannot be fetched."""
    if urlsplit(base_url).scheme not in ("http", "https"):
        raise ValueError(f"{base_url!r} is no HTTP address")
    headers = {**codec.translated_headers, **(codec.build_credentials(key) if key else {})}
    status, document = _fetch(codec.build_url(base_url, "models"), headers)
    windows = {str(each["id"]): _find_window(each) for each in codec.parse_models(_get_object(document))}
    if len(windows) == 1 and None in windows.values():
        # llama.cpp serves one model, and reports the window that it was started with elsewhere.
        _, properties = _fetch(f"{base_url.rstrip('/').removesuffix('/v1')}/props", headers)
        window = _find_window(_get_object(_get_object(properties).get("default_generation_settings")))
        windows = dict.fromkeys(windows, window)
    return ModelList(status, windows)


def _fetch(url: str, headers: Mapping[str, str]) -> tuple[int, object]:
    request = Request(url, headers={"accept": "application/json", **headers})  # noqa: S310 (the scheme is checked)
    try:
        with urlopen(request, timeout=LIST_TIMEOUT_SECONDS) as response:  # noqa: S310 (the scheme is checked)
            content, status = response.read(MAX_LIST_BYTES), response.status
    except HTTPError as error:
        with error:
            return error.code, None
    try:
        return status, json.loads(content)
    except (ValueError, RecursionError):
        return status, None


def _find_window(fields: Mapping[str, Any]) -> int | None:
    values = (fields.get(name) for name in _WINDOW_FIELDS)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _get_object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def check_hooks(setup: DoctorSetup) -> list[FindingSchema]:
    findings: list[FindingSchema] = []
    for agent in AGENTS:
        path, install = get_settings_path(agent, setup.environ), f"quire hook install {agent}"
        if not path.parent.is_dir():
            continue
        try:
            commands = find_hook_commands(agent, path)
        except QuireError as error:
            findings.append(report_problem("hooks", str(error), f"Correct {path}, then run `{install}`."))
            continue
        missing = [each for each in commands if not Path(split_command(each)[0]).exists()]
        if not commands:
            remedy = f"Run `{install}` to store its sessions."
            findings.append(report_note("hooks", f"{agent}: not installed.", remedy))
        elif missing:
            detail = f"{agent}: {path} runs `{missing[0]}`, and that program does not exist any more."
            findings.append(report_problem("hooks", detail, f"Run `{install}` to write its present path."))
        else:
            findings.append(report_ok("hooks", f"{agent}: installed in {path}"))
    return findings


def check_mcp(setup: DoctorSetup) -> list[FindingSchema]:
    """Whether the agents that are set up on this machine can search the log."""
    home = Path(setup.environ.get("HOME") or Path.home())
    claude = [home / ".claude.json", setup.folder / ".mcp.json"]
    codex = [Path(setup.environ.get("CODEX_HOME") or home / ".codex") / "config.toml"]
    cursor = [home / ".cursor" / "mcp.json", setup.folder / ".cursor" / "mcp.json"]
    found: list[FindingSchema] = []
    for agent, files, table in (
        ("claude-code", claude, "mcpServers"),
        ("codex", codex, "mcp_servers"),
        ("cursor", cursor, "mcpServers"),
    ):
        existing = [file for file in files if file.is_file()]
        # Claude Code registers a server for one folder by default, below the folder's name.
        tables = ((table,), ("projects", str(setup.folder), table))
        registered = next(
            (file for file in existing if any("quire" in _read_table(file, *each) for each in tables)), None
        )
        if registered is not None:
            found.append(report_ok("MCP", f"{agent}: `quire mcp` is in {registered}"))
        elif existing:
            found.append(
                report_note("MCP", f"{agent}: not installed.", "See docs/mcp.md for the command that adds it.")
            )
    return found


def _read_table(path: Path, *keys: str) -> Mapping[str, Any]:
    """The table of an agent's settings below these keys; empty if there is none, or if the file cannot be read."""
    try:
        text = path.read_text("utf-8")
        document: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError):
        return {}
    for key in keys:
        document = cast("dict[str, Any]", document).get(key) if isinstance(document, dict) else None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


CHECKS: tuple[Callable[[DoctorSetup], list[FindingSchema]], ...] = (
    check_versions,
    check_formats,
    check_settings,
    check_extras,
    check_data_folder,
    check_database,
    check_model,
    check_counts,
    check_vault,
    check_hooks,
    check_mcp,
)
