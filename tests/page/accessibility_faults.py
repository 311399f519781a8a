"""Accessibility faults that axe-core finds in a window: in light, dark and narrow layout."""

import os
from typing import Any

import pytest
from browser_setup import WEB_DIR
from playwright.sync_api import Page

AXE_SCRIPT = WEB_DIR / "node_modules" / "axe-core" / "axe.min.js"

VIEWPORTS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1360, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1360, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 780}, "color_scheme": "light", "has_touch": True, "is_mobile": True},
}

# In dark only the contrast differs from the same state in light.
_RUN_AXE = """() => axe.run(document, {
    resultTypes: ["violations"],
    ...(matchMedia("(prefers-color-scheme: dark)").matches ? { runOnly: ["color-contrast"] } : {}),
})"""


def run_axe(page: Page) -> list[str]:
    """Returns axe-core violations with their targets. The script is evaluated past the page's policy."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_load_script())
    results = page.evaluate(_RUN_AXE)
    return [
        f"{fault['id']}: {fault['help']} at {[node['target'] for node in fault['nodes'][:3]]}"
        for fault in results["violations"]
    ]


def _load_script() -> str:
    if not AXE_SCRIPT.is_file():
        message = "AXE-CORE IS NOT INSTALLED (just web): accessibility is not tested here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return AXE_SCRIPT.read_text(encoding="utf-8") + "; 0"
