"""The manifests in deploy/kubernetes: valid, restricted, and started with options, paths and times that there are.

`kubectl kustomize` renders them where it is installed. No cluster is used, so applying them is not tested.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from openapi_helpers import load_document

from quire.server.lifecycle import FORCED_SHUTDOWN_SECONDS

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
PROGRAM = str(Path(sys.executable).with_name("quire"))
OVERLAYS = ("one-node", "fleet")

Manifest = dict[str, Any]


def read_manifests() -> list[Manifest]:
    files = [file for file in sorted(FOLDER.rglob("*.yaml")) if file.name != "kustomization.yaml"]
    return [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]


def list_pods() -> dict[str, Manifest]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in read_manifests()
        if each["kind"] in ("Deployment", "Job")
    }


@pytest.mark.parametrize("manifest", read_manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_is_valid(manifest: Manifest):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_renders_an_overlay_to_valid_manifests(overlay: str):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER / overlay)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifests = list(yaml.safe_load_all(done.stdout))
    for each in manifests:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    # What is generated is also what the pods refer to.
    generated = {each["metadata"]["name"] for each in manifests if each["kind"] == "ConfigMap"}
    assert set(re.findall(r"(?:quire-settings|pgbouncer)-[a-z0-9]{10}", done.stdout)) == generated
    assert "image: quire\n" not in done.stdout


@pytest.mark.parametrize("name", ["server", "worker", "upgrade", "pooler"])
def test_a_pod_has_no_privileges(name: str):
    pod = list_pods()[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def test_secrets_are_only_referred_to():
    assert not [each for each in read_manifests() if each["kind"] == "Secret"]
    for file in FOLDER.rglob("*.yaml"):
        assert not re.search(r"(PASSWORD|_KEY)=\S", file.read_text()), file


@pytest.mark.parametrize("name", ["server", "worker", "upgrade"])
def test_a_pod_starts_what_there_is(name: str):
    [container] = list_pods()[name]["containers"]
    words = container["args"]
    command = [word for word in words if not word.startswith("--")][: 2 if words[0] == "db" else 1]
    printed = subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, check=True)
    assert [word for word in words if word.startswith("--") and word not in printed.stdout] == []


def test_the_probes_are_paths_of_the_server_and_it_has_time_to_stop():
    pod = list_pods()["server"]
    [container] = pod["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert set(probes) <= set(load_document()["paths"])
    grace = float(container["args"][container["args"].index("--grace") + 1])
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] > pause + grace + FORCED_SHUTDOWN_SECONDS


def test_the_poolers_configuration_is_that_of_compose():
    own, other = ((FOLDER / name).read_text() for name in ("fleet/pgbouncer.ini", "../pgbouncer.ini"))
    assert own == other.replace("host=postgres ", "host=postgres.example.org ")
