"""The shell commands of the README and the docs, and those of them that no test runs, with the reason."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *sorted(ROOT.glob("docs/*.md")))
TUTORIAL_PAGE = "tutorial.md"
SHELL_BLOCK = re.compile(r"^ *```(?P<kind>console|sh|bash|shell)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
CONTINUATION = re.compile(r"\\\n\s*")
RUNS_QUIRE = re.compile(r"(?:^|&& |\| |\$\()quire ")

CODING_AGENT = "a command of the agent itself; tests/coding_agents runs the agents with this configuration"
DATABASE_SERVER = "needs PostgreSQL; tests/server/test_deploy.py runs these commands on one"
INSTALLATION = "installs packages; test_installation.py installs every extra"
SERVICE = "installs a service, or needs one; test_service.py follows the guide"
ENCRYPTION = "tests/log/test_encryption.py does the same"
CHECKOUT = "for a clone of the repository; .ci/run runs the same"

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
    "createdb quire": DATABASE_SERVER,
    "createdb quire_again": DATABASE_SERVER,
    "quire db upgrade postgresql://owner@db/quire --role quire_app": DATABASE_SERVER,
    "quire db upgrade postgresql://owner@host/quire --role quire_app": DATABASE_SERVER,
    "quire db status postgresql://owner@db/quire_again": DATABASE_SERVER,
    "quire worker": DATABASE_SERVER,
    "quire worker --set database_url=postgresql://quire_app@host/quire": DATABASE_SERVER,
    "quire tenant import laptop.jsonl.gz --tenant anna --set database_url=postgresql://quire_app@db/quire": (
        DATABASE_SERVER
    ),
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
    "openssl rand -base64 32 > /etc/quire/key": ENCRYPTION,
    "quire tenant export observatory.jsonl.gz --tenant observatory": ENCRYPTION,
    "quire tenant import observatory.jsonl.gz --tenant observatory": ENCRYPTION,
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
    "curl -H \"Authorization: Bearer $QUIRE_KEY\" -H 'Content-Type: application/json' "
    '-d \'{"strategies": ["discard", "hybrid"], "windows": [8000], "sample": 50}\' '
    "http://127.0.0.1:8300/api/backtests": ("needs a server with a key; tests/server/test_backtest_routes.py"),
    "export OPENAI_BASE_URL=http://127.0.0.1:8300/v1": "sets a variable",
    "export ANTHROPIC_BASE_URL=http://127.0.0.1:8300": "sets a variable",
}
"""Commands that are not run, by their text."""


class DocumentedCommand(NamedTuple):
    page: str
    line: str


def list_commands() -> list[DocumentedCommand]:
    """Every command once, under the first page that has it; those of the tutorial have a test of their own."""
    found: dict[str, DocumentedCommand] = {}
    for page in PAGES:
        if page.name == TUTORIAL_PAGE:
            continue
        name = str(page.relative_to(ROOT))
        for line in extract_lines(page.read_text(encoding="utf-8")):
            found.setdefault(line, DocumentedCommand(name, line))
    return list(found.values())


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
