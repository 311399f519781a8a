"""The shell commands of all Markdown files, and those of them that no test runs, with the reason."""

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import typer

from quire.cli.app import app

ROOT = Path(__file__).parents[2]
ROOT_COMMAND: Any = typer.main.get_command(app)
FOLDERS = (".github", "deploy", "docs", "examples", "packages", "plugins")
PAGES = (*sorted(ROOT.glob("*.md")), *sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")))
TUTORIAL_PAGE = "tutorial.md"
SHELL_BLOCK = re.compile(r"^ *```(?P<kind>console|sh|bash|shell)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PROGRAMS = (
    ".venv/bin", "apt", "brew", "claude", "codex", "createdb", "createuser", "curl", "docker", "export", "gemini",
    "git", "just", "kubectl", "kustomize", "mcp-publisher", "npm", "npx", "openssl", "opencode", "pg_dump",
    "pg_restore", "pip", "pipx", "podman", "psql", "python", "python3", "quire", "rm", "sqlite3", "systemctl", "uvx",
)  # fmt: skip
"""First words of commands in inline code."""
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]*\b|…|\$\{\w+\}")
"""What a reader replaces: `quire config set model NAME`."""
SHELL_OPERATOR = re.compile(r" (?:2?>|\||&&)")
CONTINUATION = re.compile(r"\\\n\s*")
RUNS_QUIRE = re.compile(r"(?:^|&& |\| |\$\()quire ")

CODING_AGENT = "a command of the agent itself; tests/coding_agents runs the agents with this configuration"
DATABASE_SERVER = "needs PostgreSQL; tests/server/test_deploy.py runs these commands on one"
INSTALLATION = "installs packages; test_installation.py installs every extra"
SERVICE = "installs a service, or needs one; test_service.py follows the guide"
ENCRYPTION = "tests/log/test_encryption.py does the same"
TENANT_DUMP = "tests/log/test_tenant_dump.py does the same"
CHECKOUT = "for a clone of the repository; .ci/run runs the same"
AGENT_CONTEXT = "names messages of an agent's session; tests/coding_agents/test_edits_reach_agents.py changes them"
WORKER = "needs jobs in PostgreSQL; tests/jobs runs workers"
CLUSTER = "needs a Kubernetes cluster"

NOT_RUN: dict[str, str] = {
    "claude mcp add quire -- quire mcp": CODING_AGENT,
    "claude mcp add --scope user quire -- quire mcp": CODING_AGENT,
    "claude mcp add --scope user --transport http quire https://quire.example.org/mcp "
    '--header "Authorization: Bearer $QUIRE_KEY"': CODING_AGENT,
    "claude mcp list": CODING_AGENT,
    "codex mcp add quire -- quire mcp": CODING_AGENT,
    "codex mcp add quire --url https://quire.example.org/mcp --bearer-token-env-var QUIRE_KEY": CODING_AGENT,
    "codex mcp list": CODING_AGENT,
    "claude": CODING_AGENT,
    "GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8300 GEMINI_API_KEY=quire_… gemini": CODING_AGENT,
    **dict.fromkeys((f"quire service {action}" for action in ("install", "status", "uninstall")), SERVICE),
    "quire statusline": SERVICE,
    'rm -rf ~/.local/share/quire ~/.config/quire ~/.cache/quire "${XDG_RUNTIME_DIR:-/nonexistent}/quire" '
    '"${TMPDIR:-/tmp}/quire-$(id -u)" "/tmp/quire-$(id -u)"': SERVICE,
    "pip uninstall --yes quire quire-core": SERVICE,
    "quire resume Tides --in claude --run": CODING_AGENT,
    "export ANTHROPIC_API_KEY=$(quire login https://quire.example.org)": (
        "needs an identity provider; tests/server/test_sign_in.py signs in with one"
    ),
    "quire login https://quire.example.org": (
        "needs an identity provider; tests/server/test_sign_in.py signs in with one"
    ),
    "createuser --host db owner": DATABASE_SERVER,
    "createuser --host db quire_app": DATABASE_SERVER,
    "createdb --host db --owner owner quire": DATABASE_SERVER,
    "export ANTHROPIC_BASE_URL=https://quire.example.org": "sets a variable",
    "export QUIRE_TENANT=acme": "sets a variable",
    "createdb quire_again": DATABASE_SERVER,
    "quire db upgrade postgresql://owner@db/quire --role quire_app": DATABASE_SERVER,
    "quire db upgrade postgresql://owner@host/quire --role quire_app": DATABASE_SERVER,
    "quire db upgrade postgresql://owner@db/quire_again --check": DATABASE_SERVER,
    "quire worker": DATABASE_SERVER,
    "quire worker --set database_url=postgresql://quire_app@host/quire": DATABASE_SERVER,
    "quire import harbour.jsonl --set tenant=anna --set database_url=postgresql://quire_app@db/quire": DATABASE_SERVER,
    "quire tenant list --set database_url=postgresql://quire_app@db/quire": DATABASE_SERVER,
    "export QUIRE_DATABASE_URL=postgresql://quire_app@db/quire": DATABASE_SERVER,
    "pg_dump --format custom --file quire.dump postgresql://quire_backup@db/quire": DATABASE_SERVER,
    "pg_restore --exit-on-error --dbname postgresql://postgres@db/quire_again quire.dump": DATABASE_SERVER,
    "quire backtest --project harbour --strategy hybrid --window 16000 --window 64000": (
        "needs conversations of that project; test_backtest_command.py"
    ),
    "quire key revoke 01ke6pfy600000000000000005 --tenant observatory": (
        "names a key of that tenant; test_key.py revokes one"
    ),
    "quire serve --host 0.0.0.0 --workers 4 --log-format json": "listens on every interface; test_serve_process.py",
    "pip install '.[all]'": INSTALLATION,
    "pip install quire": INSTALLATION,
    "pip install 'quire[all]'": INSTALLATION,
    "pip install 'quire-core[claude-agent-sdk]'": INSTALLATION,
    "pip install 'quire-core[langchain]'": INSTALLATION,
    "pip install 'quire-core[openai-agents]'": INSTALLATION,
    "pip install 'quire-core[pydantic-ai]'": INSTALLATION,
    "git clone <this repository> quire && cd quire": CHECKOUT,
    "python3 -m venv .venv && .venv/bin/pip install rust-just": CHECKOUT,
    ".venv/bin/just setup": CHECKOUT,
    ".venv/bin/just check": CHECKOUT,
    ".venv/bin/just test tests/log/test_purge.py": CHECKOUT,
    "sqlite3 ~/.local/share/quire/quire.db \"VACUUM INTO '/backup/quire-$(date +%F).db'\"": "tests/log/test_backup.py",
    'sqlite3 ~/.local/share/quire/quire.db ".backup /backup/quire.db"': "tests/log/test_backup.py",
    "pg_dump --enable-row-security --data-only --load-via-partition-root --no-unlogged-table-data "
    "--rows-per-insert 100 --table 'quire_*' --exclude-table quire_version --exclude-table quire_sweeps "
    "--exclude-table 'quire_queue_*' --file observatory.sql postgresql://quire_leaving@db/quire": TENANT_DUMP,
    "PGOPTIONS='-c quire.tenant=observatory' psql --single-transaction --set ON_ERROR_STOP=1 --file observatory.sql "
    "postgresql://quire_app@other/quire": TENANT_DUMP,
    "openssl rand -base64 32 > /etc/quire/key": ENCRYPTION,
    "pg_dump --format custom --exclude-table-data=quire_tenant_keys --file quire.dump "
    "postgresql://quire_backup@db/quire": ENCRYPTION,
    "pg_dump --format custom --data-only --table=quire_tenant_keys --file keys.dump "
    "postgresql://quire_backup@db/quire": ENCRYPTION,
    "sqlite3 quire.db \"VACUUM INTO '/backup/quire.db'\"": ENCRYPTION,
    'sqlite3 quire.db ".mode insert quire_tenant_keys" "SELECT * FROM quire_tenant_keys" > /keys/keys.sql': ENCRYPTION,
    'sqlite3 /backup/quire.db "PRAGMA secure_delete = ON; DELETE FROM quire_tenant_keys; VACUUM"': ENCRYPTION,
    "journalctl -u quire -o cat | jq -r 'select(.status >= 500) | [.time, .route, .error_code, .request_id] | @tsv'": (
        "reads the journal of a machine with systemd"
    ),
    "curl -H \"Authorization: Bearer $QUIRE_KEY\" 'http://127.0.0.1:8300/api/stats?by=model&limit=5'": (
        "needs a server with a key; tests/server/test_stats_routes.py"
    ),
    "curl -H \"Authorization: Bearer $QUIRE_KEY\" 'http://127.0.0.1:8300/api/stats/references?limit=50'": (
        "needs a server with a key; tests/server/test_stats_routes.py"
    ),
    **dict.fromkeys(
        (
            "quire context drop 12",
            "quire context drop 12,20-31",
            'quire context drop 12,20-31 --reason "old build logs"',
            "quire context restore 12,31,40",
            "quire context why 12",
        ),
        AGENT_CONTEXT,
    ),
    "quire serve --workers 2": DATABASE_SERVER,
    "quire serve --workers 2 --log-format json": DATABASE_SERVER,
    "quire db upgrade --role quire_app": DATABASE_SERVER,
    "mcp-publisher publish": "publishes; the release workflow writes the entry that it sends",
    "pip install quire-core": INSTALLATION,
    "pip install 'quire[postgres]'": INSTALLATION,
    "pip install 'quire[encoder]'": INSTALLATION,
    'pip install "quire[worker]"': INSTALLATION,
    "uvx quire": INSTALLATION,
    "pipx run quire": INSTALLATION,
    "python -m quire.cli.command_reference": "tests/cli/test_every_command.py compares what it writes",
    "python tools/reference_pages.py": "tests/test_reference_pages.py compares what it writes",
    "python tools/hash_requirements.py > deploy/requirements.txt": "tests/test_supply_chain.py compares what it writes",
    "python benchmarks/footprint.py": "`just bench footprint` runs it",
    "podman pull": "needs an image registry",
    "podman inspect --format '{{.Digest}}'": "needs an image registry",
    "pg_restore --clean": DATABASE_SERVER,
    "quire worker --all": WORKER,
    "quire worker --once": WORKER,
    "quire worker --once --all": WORKER,
    "kubectl label namespace ingress-nginx quire-clients=true": CLUSTER,
    "kubectl --namespace quire delete job upgrade": CLUSTER,
    "curl http://node:8300/readyz": "needs that server; tests/server/test_health.py",
    "codex plugin remove quire@quire": CODING_AGENT,
    "codex plugin marketplace remove quire": CODING_AGENT,
    "claude mcp remove quire": CODING_AGENT,
    "opencode import": CODING_AGENT,
    "systemctl --user edit quire": SERVICE,
    "export OPENAI_BASE_URL=http://127.0.0.1:8300/v1": "sets a variable",
    "export ANTHROPIC_BASE_URL=http://127.0.0.1:8300": "sets a variable",
}
"""Commands that are not run, by their text."""


class DocumentedCommand(NamedTuple):
    page: str
    line: str


def list_commands() -> list[DocumentedCommand]:
    """Every command once, under the first page that has it; those of the tutorial have a test of their own.

    Of the inline ones, only those that can be run: `quire resume` alone, or with a placeholder, names a command.
    """
    found: dict[str, DocumentedCommand] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [] if page.name == TUTORIAL_PAGE else extract_lines(text)
        for line in [*lines, *filter(is_complete, extract_inline(text))]:
            found.setdefault(line, DocumentedCommand(str(page.relative_to(ROOT)), line))
    return list(found.values())


def list_inline_commands() -> dict[str, str]:
    """Every command in inline code, and the first page that has it."""
    found: dict[str, str] = {}
    for page in PAGES:
        for line in extract_inline(page.read_text(encoding="utf-8")):
            found.setdefault(line, str(page.relative_to(ROOT)))
    return found


def extract_inline(text: str) -> list[str]:
    spans = (" ".join(each.split()) for each in INLINE_CODE.findall(FENCE.sub("", text)))
    return [span for span in spans if span.partition(" ")[0] in PROGRAMS and " " in span]


def is_complete(line: str) -> bool:
    """Whether an inline command has all that it needs, and more than the names of a command."""
    if PLACEHOLDER.search(line) or line.startswith("just "):
        return False
    return not line.startswith("quire ") or parse_quire(line)


def parse_quire(line: str) -> bool:
    """Parses the words of `quire …` as the program does; raises what the program reports as a usage error.

    Returns False if something is missing that the program needs, or if the line only names a command.
    """
    words = shlex.split(PLACEHOLDER.sub("7", SHELL_OPERATOR.split(line)[0]))[1:]
    command: Any = ROOT_COMMAND
    if words[0].startswith("-"):
        assert words[0] in {"--help"} | {name for option in command.params for name in option.opts}, line
        return False
    context: Any = typer.Context(command, info_name="quire")
    while hasattr(command, "resolve_command"):
        if not words:
            return False
        name, command, words = command.resolve_command(context, words)
        context = typer.Context(command, parent=context, info_name=name)
    try:
        command.make_context(context.info_name, list(words), parent=context.parent)
    except typer.BadParameter as error:
        # Typer exports no class for a missing argument.
        if type(error).__name__ != "MissingParameter":
            raise
        return False
    return bool(words)


def extract_lines(text: str) -> list[str]:
    """The commands of all shell blocks, without comments."""
    lines = [
        line.removeprefix("$ ")
        for block in SHELL_BLOCK.finditer(text)
        for line in CONTINUATION.sub("", block["text"]).splitlines()
        if line.strip() and (line.startswith("$ ") or block["kind"] != "console")
    ]
    return [re.sub(r"\s+# .*$", "", line) for line in lines]


def is_run(command: DocumentedCommand) -> bool:
    return command.line not in NOT_RUN and RUNS_QUIRE.search(command.line) is not None
