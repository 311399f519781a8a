"""Measures the shape and the language of the source: `just metrics`, or `python tools/code_metrics.py src/quire`.

Prints one number per line: size, fragments, names, imports, and how often the prose avoids the technical term.
`--surface` adds what users meet: settings, commands and options, and the tests beside the source.
"""

import argparse
import ast
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path

VAGUE_WORDS = (
    "anew", "asked", "at hand", "beside", "besides", "goes on", "heard", "kept", "leave", "meant", "mended", "nobody",
    "shown", "so long", "so many", "so often", "somebody", "stands", "tell", "tells", "told", "under way", "wanted",
    "whoever",
)  # fmt: skip
"""Words that stand in for a technical term; `docs/glossary.md` has the terms."""

MAX_FUNCTION_LINES = 80
SMALL_MODULE_LINES = 80
"""A module below this length with one importer is usually a paragraph of that importer."""

IRREGULAR_PARTICIPLES = {
    "beneath",
    "found",
    "given",
    "heard",
    "kept",
    "made",
    "shown",
    "told",
    "written",
    "fresh",
    "due",
}
NOUNS_IN_ING = {"embedding", "mapping", "recording", "rendering", "spending", "string"}
ADJECTIVES_IN_ED = {"rendered", "scripted"}


class Module:
    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        parts = path.relative_to(root.parent).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.text = path.read_text()
        self.tree = ast.parse(self.text)

    @property
    def total_lines(self) -> int:
        return self.text.count("\n")

    def code_lines(self) -> int:
        """Physical lines without blanks, comments and docstrings (those of attributes included)."""
        lines = self.text.splitlines()
        skipped = {n for n, line in enumerate(lines, 1) if not line.strip() or line.lstrip().startswith("#")}
        for node in ast.walk(self.tree):
            for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    skipped.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
        return len(lines) - len(skipped)

    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]

    def import_lines(self) -> int:
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in self.imports())

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    def single_use_functions(self) -> list[str]:
        """Private functions and methods that their module names once, apart from the definition."""
        private = [node.name for node in self.functions() if re.match(r"_[^_]", node.name)]
        return [name for name in private if len(re.findall(rf"\b{re.escape(name)}\b", self.text)) == 2]

    def has_participle_name(self) -> bool:
        """Whether the last word of the module's name is a gerund or a participle."""
        word = self.name.rsplit(".", 1)[-1].rsplit("_", 1)[-1]
        gerund = word.endswith("ing") and word not in NOUNS_IN_ING
        participle = word.endswith("ed") and word not in ADJECTIVES_IN_ED
        return not self.is_package and (gerund or participle or word in IRREGULAR_PARTICIPLES)


def import_graph(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Which module imports which, lazy imports and those for types only included."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for node in module.imports():
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            for name in names:
                target = name if name in modules else name.rpartition(".")[0]
                if target in modules and target != module.name:
                    graph[module.name].add(target)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of two or more modules (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def class_names(modules: dict[str, Module]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                names[node.name].append(module.name)
    return names


def measure(root: Path) -> dict[str, object]:
    modules = {m.name: m for m in (Module(path, root) for path in sorted(root.rglob("*.py")))}
    named = [m for m in modules.values() if not m.is_package]
    graph = import_graph(modules)
    importers = Counter(target for targets in graph.values() for target in targets)
    code = sum(m.code_lines() for m in modules.values())
    words = re.compile(r"\b(" + "|".join(VAGUE_WORDS) + r")\b", re.IGNORECASE)
    functions = [(module, node) for module in modules.values() for node in module.functions()]
    single_use = [f"{module.name}.{name}" for module in modules.values() for name in module.single_use_functions()]
    return {
        "files": len(modules),
        "total lines": sum(m.total_lines for m in modules.values()),
        "code lines": code,
        "median lines of a file": statistics.median(m.total_lines for m in modules.values()),
        "share of imports, %": round(100 * sum(m.import_lines() for m in modules.values()) / code, 1),
        "functions": len(functions),
        "private functions with one use": single_use,
        "share of private functions with one use, %": round(100 * len(single_use) / max(1, len(functions)), 1),
        f"functions over {MAX_FUNCTION_LINES} lines": [
            f"{module.name}.{node.name}"
            for module, node in functions
            if (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
        ],
        f"modules under {SMALL_MODULE_LINES} lines with one importer": [
            m.name for m in named if importers[m.name] == 1 and m.total_lines < SMALL_MODULE_LINES
        ],
        "that of, those of": re.findall(r"\b(?:that|those) of\b", "".join(m.text for m in modules.values())),
        "modules named by a gerund or participle": [m.name for m in named if m.has_participle_name()],
        "modules with one importer": [m.name for m in named if importers[m.name] == 1],
        "class names that exist twice": [name for name, places in class_names(modules).items() if len(places) > 1],
        "import cycles, types included": [" ".join(sorted(cycle)) for cycle in cycles(graph)],
        "vague words": [match for m in modules.values() for match in words.findall(m.text)],
    }


def measure_surface(root: Path) -> dict[str, object]:
    """Settings, commands and options that users meet, and the tests."""
    import typer

    from quire.cli.app import app
    from quire.settings import Settings

    commands, options = 0, 0
    pending = [typer.main.get_command(app)]
    while pending:
        command = pending.pop()
        options += sum(parameter.param_type_name == "option" for parameter in command.params)
        if hasattr(command, "list_commands"):
            context = command.make_context("quire", [], resilient_parsing=True)
            pending += [command.get_command(context, name) for name in command.list_commands(context)]
        else:
            commands += 1
    texts = [path.read_text() for path in (root.parents[1] / "tests").rglob("*.py")]
    return {
        "settings": len(Settings.model_fields),
        "commands": commands,
        "options": options,
        "lines of tests": sum(text.count("\n") for text in texts),
        "test functions": sum(len(re.findall(r"^\s*(?:async )?def test_", text, re.MULTILINE)) for text in texts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=Path("src/quire"))
    parser.add_argument("--list", action="store_true", help="name what is counted")
    parser.add_argument("--surface", action="store_true", help="count settings, commands, options and tests too")
    options = parser.parse_args()
    metrics = measure(options.root)
    if options.surface:
        metrics |= measure_surface(options.root.resolve())
    for name, value in metrics.items():
        if isinstance(value, list):
            print(f"{name}: {len(value)}")
            if options.list:
                for item, count in Counter(value).most_common():
                    print(f"    {item}" + (f" x {count}" if count > 1 else ""))
        else:
            print(f"{name}: {value}")


if __name__ == "__main__":
    main()
