"""The image and the steps of k8s/README.md: what they name is there, at the version that it says, and does what it says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from packaging.requirements import Requirement

import loadgen
from loadgen.cli.reference import ROOT
from tests.k8s.rendered import EVERY, K8S, Pod, manifests, needs_kubectl, one, overlay, pod, pods, rendered

pytestmark = needs_kubectl


def every_pod() -> Iterator[tuple[str, Pod]]:
    for folder in EVERY:
        for each in pods(rendered(folder)):
            yield folder, each


def test_our_image_has_this_version_everywhere() -> None:
    images = {each.container["image"] for _, each in every_pod() if "vllm" not in each.container["image"]}
    assert images == {f"llm-loadgen:{loadgen.__version__}"}
    text = (K8S / "README.md").read_text(encoding="utf-8") + (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"llm-loadgen:([\d.]+\d)", text)) == {loadgen.__version__}


def test_the_image_holds_every_requirement_at_one_version_that_suits() -> None:
    pins = dict(line.split("==") for line in (K8S / "requirements.txt").read_text().splitlines() if "==" in line)
    for line in re.findall(
        r'^  "([\w-]+[~><=][^"]*)",$', (ROOT / "pyproject.toml").read_text().partition("[project.opt")[0], re.M
    ):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins[requirement.name.lower()]), line


def test_the_dockerfile_copies_what_the_context_has_and_is_not_root() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    kept = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M) for word in line.split()[:-1]}
    assert copied == kept and all((ROOT / path).exists() for path in copied)
    assert len(set(re.findall(r"^FROM (\S+)", text, re.M))) == 1
    assert re.search(r"^FROM python:3\.11\.\d+-slim-\w+$", text, re.M)
    user, group = re.search(r"^USER (\d+):(\d+)$", text, re.M).groups()  # type: ignore[union-attr]
    ours = [each for _, each in every_pod() if each.container["image"].startswith("llm-loadgen:")]
    assert {each.spec["securityContext"]["runAsUser"] for each in ours} == {int(user)}
    assert {each.spec["securityContext"]["runAsGroup"] for each in ours} == {int(group)}
    assert 'ENTRYPOINT ["loadgen"]' in text  # what the args of the manifests are for
    (directory,) = re.findall(r"^WORKDIR (/data)$", text, re.M)
    assert pod(overlay("sim"), "loadgen-controller").container["workingDir"] == directory


def test_the_sweep_of_the_readme_changes_the_setting_and_the_name_and_nothing_else() -> None:
    text = (K8S / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r'sed "(.*)"', text)
    whole = manifests("overlays/vllm-gpu")
    told = subprocess.run(["sed", script.replace("$n", "16")], input=whole, capture_output=True, text=True, check=True)
    changed = [
        (before.strip(), after.strip())
        for before, after in zip(whole.splitlines(), told.stdout.splitlines(), strict=True)
        if before != after
    ]
    assert changed == [
        ("name: kubernetes-vllm", "name: kubernetes-vllm-16"),
        ("- --max-num-seqs=64", "- --max-num-seqs=16"),
    ]
    selector = {"app.kubernetes.io/name": re.findall(r"--selector app.kubernetes.io/name=(\w+)", text)[0]}
    chosen = {
        each["kind"] for each in overlay("vllm-gpu") if selector.items() <= each["metadata"].get("labels", {}).items()
    }
    assert {"Deployment", "PersistentVolumeClaim", "Service"} <= chosen and "Job" not in chosen


def test_every_name_that_the_readme_gives_kubectl_is_there() -> None:
    text = (K8S / "README.md").read_text(encoding="utf-8")
    kinds = {"job": "Job", "deployment": "Deployment", "pod": "Pod"}
    resources = [*overlay("vllm-gpu"), *rendered("results")]
    named = re.findall(r"\b(job|deployment|pod)/([\w-]+)", text)
    assert len(named) > 4
    for kind, name in named:
        one(resources, kinds[kind], name)
    for folder in re.findall(r"(?:-k|kustomize) k8s/([\w/-]+)", text):
        assert rendered(folder)
    wanted = {
        (reference["name"], reference["key"])
        for each in pods(resources)
        for variable in each.container.get("env", [])
        if (reference := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    assert wanted == set(re.findall(r"secret generic ([\w-]+) --from-literal=([\w-]+)=", text))
