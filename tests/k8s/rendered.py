"""The manifests of k8s/ as `kubectl kustomize` gives them, and what tests ask of them; for tests of this folder."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from loadgen.cli.reference import ROOT

K8S = ROOT / "k8s"
OVERLAYS = ("sim", "vllm-gpu", "existing-endpoint")
EVERY = (*(f"overlays/{name}" for name in OVERLAYS), "base", "results")
"""Every folder that is rendered by itself."""
TARGETS = ("sim", "vllm-gpu")
"""Overlays with a server of their own."""

needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")

Resource = dict[str, Any]


@functools.cache
def manifests(folder: str) -> str:
    told = subprocess.run(["kubectl", "kustomize", str(K8S / folder)], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, ""), told.stderr
    return told.stdout


def rendered(folder: str) -> list[Resource]:
    """What `kubectl apply -k k8s/FOLDER` would send."""
    return [resource for resource in yaml.safe_load_all(manifests(folder)) if resource]


def overlay(name: str) -> list[Resource]:
    return rendered(f"overlays/{name}")


def one(resources: list[Resource], kind: str, name: str) -> Resource:
    (found,) = (each for each in resources if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as its owner would make it."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def container(self) -> Mapping[str, Any]:
        (container,) = self.spec["containers"]
        return container  # type: ignore[no-any-return]

    @property
    def words(self) -> list[str]:
        """The container's command line, behind the image's own ENTRYPOINT where there is no command."""
        return [*self.container.get("command", ["loadgen"]), *self.container.get("args", [])]

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}


def pods(resources: list[Resource]) -> Iterator[Pod]:
    for each in resources:
        if each["kind"] == "Pod":
            yield Pod(each["metadata"]["name"], each["metadata"]["labels"], each["spec"])
        elif each["kind"] in ("Job", "Deployment"):
            template = each["spec"]["template"]
            yield Pod(each["metadata"]["name"], template["metadata"]["labels"], template["spec"])


def selected(resources: list[Resource], labels: Mapping[str, str]) -> list[Pod]:
    """Pods that have all these labels."""
    return [pod for pod in pods(resources) if labels.items() <= pod.labels.items()]


def pod(resources: list[Resource], owner: str) -> Pod:
    (found,) = (each for each in pods(resources) if each.owner == owner)
    return found
