"""The alert rules and the dashboard in deploy/ use metrics and labels that the server exports."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.server.telemetry import metrics as server_metrics
from quire.server.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "dashboard.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD_EXPRESSIONS: list[str] = [each["expr"] for panel in DASHBOARD["panels"] for each in panel["targets"]]
EXPRESSIONS = [*(rule["expr"] for rule in RULES), *DASHBOARD_EXPRESSIONS]
PROMETHEUS_LABELS = {"instance", "job", "le"}


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each exported metric, by its name in Prometheus."""
    registered: Any = Metrics()._registry
    names: dict[str, set[str]] = {}
    for collector, samples in registered._collector_to_names.items():
        for sample in samples:
            names[sample] = set(getattr(collector, "_labelnames", ()))
    return names


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_use_exported_metrics_and_their_labels(expression: str, labels: dict[str, set[str]]):
    names = re.findall(r"\bquire_\w+", expression)
    assert names or expression.startswith("up{")
    for name in names:
        assert name in labels, f"{name} is not exported"
    known = PROMETHEUS_LABELS.union(*(labels[name] for name in names))
    grouped = [label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")]
    selected = [label for group in re.findall(r"{([^}]*)}", expression) for label in re.findall(r"(\w+)=", group)]
    assert set(grouped + selected) <= known


def test_the_kinds_of_store_errors_exist():
    selected = re.findall(r'quire_store_errors_total{kind="(\w+)"}', " ".join(EXPRESSIONS))
    assert selected
    assert set(selected) <= set(server_metrics._STORE_ERROR_KINDS.values())


def test_every_metric_is_on_the_dashboard(labels: dict[str, set[str]]):
    shown = " ".join(DASHBOARD_EXPRESSIONS)
    families = {re.sub(r"_(bucket|count|created|sum|total)$", "", name) for name in labels}
    assert [name for name in sorted(families) if name.startswith("quire_") and name not in shown] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_the_page_has_every_rule_with_its_threshold(rule: dict[str, Any]):
    page = (ROOT / "docs" / "deployment.md").read_text()
    [row] = [line for line in page.splitlines() if f"`{rule['alert']}`" in line]
    threshold = re.search(r"> ([\d.]+)$", rule["expr"].strip())
    shown = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", row)} | {0.0}
    assert threshold is None or {float(threshold[1]), 100 * float(threshold[1])} & shown


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_runbooks_exist(rule: dict[str, Any]):
    path, _, anchor = rule["annotations"].get("runbook", "docs/operations.md#time-limits").partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / path).read_text(), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
