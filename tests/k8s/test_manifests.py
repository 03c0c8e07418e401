"""The manifests of k8s/: Kubernetes would take them, and every name, port, label, option and key in them is one that there is."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from loadgen.cli import load_command
from loadgen.cli.reference import ROOT
from loadgen.cli.serve import app as serve
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario
from server.simulator.settings import SimulatorSettings
from tests.k8s.rendered import (
    EVERY,
    OVERLAYS,
    TARGETS,
    Pod,
    Resource,
    needs_kubectl,
    one,
    overlay,
    pod,
    pods,
    rendered,
    selected,
)

pytestmark = needs_kubectl

SAMPLES = ROOT / "tests/samples/k8s"
# The oldest that is validated against, and the newest that the validator knows.
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def check(resource: Resource, version: str) -> None:
    """Raises where the API server would refuse the resource, or say a warning about a key that it does not know."""
    own = SAMPLES / f"{resource['kind'].lower()}.schema.json"
    if own.exists():
        jsonschema.validate(resource, json.loads(own.read_text(encoding="utf-8")))
    else:
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", EVERY)
def test_kubernetes_would_take_every_resource(folder: str, version: str) -> None:
    resources = rendered(folder)
    assert len({(each["kind"], each["metadata"]["name"]) for each in resources}) == len(resources)
    for resource in resources:
        check(resource, version)
        assert resource["kind"] == "Namespace" or resource["metadata"]["namespace"] == "loadgen"


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("Job", "loadgen-worker", ("spec", "completion"), 3),
        ("Job", "loadgen-worker", ("spec", "template", "spec", "containers", 0, "arg"), []),
        ("Deployment", "llm", ("spec", "replicas"), "one"),
        ("PodMonitor", "loadgen", ("spec", "podMetricsEndpoints", 0, "scrapeInterval"), "5s"),
        ("PrometheusRule", "loadgen", ("spec", "groups", 1, "rules", 0, "forr"), "5s"),
    ],
)
def test_a_wrong_key_or_value_would_be_noticed(kind: str, name: str, path: tuple[Any, ...], value: Any) -> None:
    resource = one(overlay("sim"), kind, name)
    place = resource
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check(resource, VERSIONS[-1])


@pytest.mark.parametrize("folder", EVERY)
def test_every_pod_keeps_the_restricted_standard_and_has_its_needs_stated(folder: str) -> None:
    for each in pods(rendered(folder)):
        of_pod, of_container = each.spec["securityContext"], each.container["securityContext"]
        assert of_pod["runAsNonRoot"] and of_pod["runAsUser"] > 0, each.owner
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert of_container["capabilities"] == {"drop": ["ALL"]} and not of_container["allowPrivilegeEscalation"]
        assert not each.spec["automountServiceAccountToken"]
        assert {"cpu", "memory"} <= each.container["resources"]["requests"].keys()
        assert "memory" in each.container["resources"]["limits"]
        assert ":" in each.container["image"] and not each.container["image"].endswith(":latest")


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_volume_claim_and_configuration_that_a_pod_mounts_is_there(name: str) -> None:
    resources = overlay(name)
    for each in pods(resources):
        volumes = {volume["name"]: volume for volume in each.spec.get("volumes", [])}
        assert {mount["name"] for mount in each.container["volumeMounts"]} == volumes.keys()
        for volume in volumes.values():
            if "configMap" in volume:
                one(resources, "ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                one(resources, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    (shown,) = pods(rendered("results"))
    one(resources, "PersistentVolumeClaim", shown.spec["volumes"][0]["persistentVolumeClaim"]["claimName"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_service_and_monitor_reaches_a_pod_by_a_port_that_it_has(name: str) -> None:
    resources = overlay(name)
    for each in resources:
        if each["kind"] == "Service":
            (served,) = selected(resources, each["spec"]["selector"])
            for port in each["spec"]["ports"]:
                assert served.ports[port["targetPort"]] == port["port"]
        if each["kind"] == "PodMonitor" and (name in TARGETS or each["metadata"]["name"] != "llm"):
            (scraped,) = selected(resources, each["spec"]["selector"]["matchLabels"])
            assert {end["port"] for end in each["spec"]["podMetricsEndpoints"]} <= scraped.ports.keys()
        if each["kind"] == "Deployment":
            assert selected(resources, each["spec"]["selector"]["matchLabels"]) == [pod(resources, "llm")]


def allowed(resources: list[Resource], direction: str, of: Pod) -> list[tuple[dict[str, Any] | None, int]]:
    """What NetworkPolicies let through for a pod: (peer, port), no peer for everyone."""
    found = []
    for each in resources:
        if (
            each["kind"] != "NetworkPolicy"
            or not each["spec"]["podSelector"]["matchLabels"].items() <= of.labels.items()
        ):
            continue
        for rule in each["spec"].get(direction, []):
            peers = rule.get("from" if direction == "ingress" else "to", [None])
            found += [(peer, port["port"]) for peer in peers for port in rule["ports"]]
    return found


def peers(*of: Pod) -> Any:
    return lambda peer: (
        peer is not None
        and all(
            peer.get("podSelector", {}).get("matchLabels", {"no": "one"}).items() <= each.labels.items() for each in of
        )
    )


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_network_lets_through_what_a_run_needs_and_no_other_load(name: str) -> None:
    resources = overlay(name)
    controller, worker = pod(resources, "loadgen-controller"), pod(resources, "loadgen-worker")
    for each in pods(resources):
        isolated = one(resources, "NetworkPolicy", "loadgen-nothing-but-dns")
        assert isolated["spec"]["podSelector"]["matchLabels"].items() <= each.labels.items()
        assert isolated["spec"]["policyTypes"] == ["Ingress", "Egress"]
    to_prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    into_controller = allowed(resources, "ingress", controller)
    assert [port for peer, port in into_controller if peers(worker)(peer)] == [controller.ports["workers"]]
    assert (to_prometheus, controller.ports["metrics"]) in into_controller
    assert [port for peer, port in allowed(resources, "egress", worker) if peers(controller)(peer)] == [5557]
    assert allowed(resources, "ingress", worker) == []
    for client in (controller, worker):
        outside = [(peer, port) for peer, port in allowed(resources, "egress", client) if port not in (53, 5557)]
        if name in TARGETS:
            llm = pod(resources, "llm")
            assert [port for peer, port in outside if peers(llm)(peer)] == [llm.ports["api"]] and len(outside) == 1
            from_clients = [
                port for peer, port in allowed(resources, "ingress", llm) if peers(controller, worker)(peer)
            ]
            assert from_clients == [llm.ports["api"]]
            assert (to_prometheus, llm.ports["api"]) in allowed(resources, "ingress", llm)
        else:
            assert outside == [(None, 443)]


def options(words: list[str]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)


@pytest.mark.parametrize("name", OVERLAYS)
def test_options_are_those_of_the_command_and_agree_with_the_manifests(name: str) -> None:
    resources = overlay(name)
    controller, worker = pod(resources, "loadgen-controller"), pod(resources, "loadgen-worker")
    for each in (controller, worker):
        words = each.words[1:]
        command = load_command(words[0])
        command.make_context(words[0], words[1:], resilient_parsing=False)
    asked, offered = options(controller.words), options(worker.words)
    assert offered["master-host"] == one(resources, "Service", "loadgen-controller")["metadata"]["name"]
    assert offered["master-port"] == asked["master-bind-port"] == str(controller.ports["workers"])
    assert asked["metrics-port"] == str(controller.ports["metrics"])
    assert asked["metrics-host"] == "0.0.0.0"  # or Prometheus would not reach it
    job = one(resources, "Job", "loadgen-worker")["spec"]
    assert asked["expect-workers"] == str(job["completions"]) == str(job["parallelism"])
    assert one(resources, "Job", "loadgen-controller")["spec"]["backoffLimit"] == 0
    mounts = {mount["name"]: mount["mountPath"] for mount in controller.container["volumeMounts"]}
    scenario_file = controller.words[2]
    assert (
        scenario_file.removeprefix(f"{mounts['scenario']}/") in one(resources, "ConfigMap", "loadgen-scenario")["data"]
    )
    assert mounts["runs"] == f"{controller.container['workingDir']}/runs"  # where a run without -o goes


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_scenario_is_one_and_its_target_is_the_service(name: str, tmp_path: Any) -> None:
    resources = overlay(name)
    path = tmp_path / "scenario.yaml"
    path.write_text(one(resources, "ConfigMap", "loadgen-scenario")["data"]["scenario.yaml"])
    scenario = load_scenario(path)
    assert scenario.levels()
    if name in TARGETS:
        service = one(resources, "Service", "llm")
        assert str(scenario.target.base_url).rstrip("/") == f"http://llm:{service['spec']['ports'][0]['port']}"
    else:
        assert str(scenario.target.base_url).startswith("https://")
    key_name = Scenario.model_validate({}).target.api_key_env
    for owner in ("loadgen-controller", "loadgen-worker"):
        (variable,) = pod(resources, owner).container["env"]
        assert variable["name"] == scenario.target.api_key_env == key_name
        assert variable["valueFrom"] == {
            "secretKeyRef": {"name": "loadgen-api-key", "key": "api-key", "optional": True}
        }


def test_no_secret_is_in_the_manifests() -> None:
    for folder in EVERY:
        assert not [each for each in rendered(folder) if each["kind"] == "Secret"]


def test_the_simulators_options_are_there() -> None:
    simulator = pod(overlay("sim"), "llm")
    command = get_command(serve).commands["sim"]  # type: ignore[attr-defined]
    assert simulator.words[:3] == ["loadgen", "serve", "sim"]
    command.make_context("sim", simulator.words[3:])
    asked = options(simulator.words)
    assert int(asked["port"]) == simulator.ports["api"]
    names = {name.replace("_", "-") for name in SimulatorSettings.model_fields}
    assert asked.keys() - {"host", "port"} <= names
    assert [variable["name"] for variable in simulator.container["env"]] == ["SIM_API_KEY"]


def test_vllm_has_its_gpu_its_cache_and_probes_that_wait_for_the_model() -> None:
    resources = overlay("vllm-gpu")
    vllm = pod(resources, "llm")
    assert options(vllm.words)["port"] == str(vllm.ports["api"])
    assert vllm.container["resources"]["requests"]["nvidia.com/gpu"] == 1
    assert vllm.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    probes = {name: vllm.container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    assert {probe["httpGet"]["path"] for probe in probes.values()} == {"/health"}
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {"api"}
    starts_s = probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"]
    scenario = yaml.safe_load(one(resources, "ConfigMap", "loadgen-scenario")["data"]["scenario.yaml"])
    assert scenario["target"]["ready_timeout"] == f"{starts_s}s"
    mounts = {mount["name"]: mount["mountPath"] for mount in vllm.container["volumeMounts"]}
    environment = {variable["name"]: variable.get("value", "") for variable in vllm.container["env"]}
    assert environment["HF_HOME"].startswith(f"{mounts['model-cache']}/")
    assert environment["VLLM_CACHE_ROOT"].startswith(f"{mounts['model-cache']}/")
    assert not vllm.spec["enableServiceLinks"]
    assert max(scenario["load"]["concurrency"]) == 2 * int(options(vllm.words)["max-num-seqs"])
