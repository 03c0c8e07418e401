"""Runs a container's command line as a process here: names of services, ports and folders become those of this machine; for tests of this folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.fleet.test_run import free_port
from tests.k8s.rendered import Pod, Resource, one, pod, pods

LOOPBACK = "127.0.0.1"


class Here:
    """What stands for what on this machine, for the manifests of one overlay."""

    def __init__(self, resources: list[Resource], folder: Path, *, further: Mapping[str, str] | None = None) -> None:
        """`folder` takes the place of every volume; `further`: other texts and what takes their place."""
        self._resources = resources
        self._folder = folder
        self.ports = {port: free_port() for each in pods(resources) for port in each.ports.values()}
        """Port of a container → the one that it has here."""
        self._texts = dict(further or {})
        for each in resources:
            if each["kind"] == "Service":
                for port in each["spec"]["ports"]:
                    url = f"http://{each['metadata']['name']}:{port['port']}"
                    self._texts[url] = f"http://{LOOPBACK}:{self.ports[port['port']]}"
        self._names = {each["metadata"]["name"] for each in resources if each["kind"] == "Service"} | {"0.0.0.0"}

    def text(self, text: str) -> str:
        """A file's text, with its addresses those of this machine."""
        for there, here in self._texts.items():
            text = text.replace(there, here)
        return text

    def _word(self, word: str, each: Pod) -> str:
        option, equals, value = word.rpartition("=")
        if value in self._names:
            value = LOOPBACK
        elif option.endswith("port") and int(value) in self.ports:
            value = str(self.ports[int(value)])
        for mount in each.container.get("volumeMounts", []):
            if value == mount["mountPath"] or value.startswith(f"{mount['mountPath']}/"):
                value = value.replace(mount["mountPath"], str(self._place(mount["name"], each)), 1)
                break
        return f"{option}{equals}{value}"

    def _place(self, volume: str, each: Pod) -> Path:
        (found,) = (one for one in each.spec["volumes"] if one["name"] == volume)
        if "configMap" in found:
            place = self._folder / found["configMap"]["name"]
            place.mkdir(exist_ok=True)
            for name, text in one(self._resources, "ConfigMap", found["configMap"]["name"])["data"].items():
                (place / name).write_text(self.text(text))
            return place
        # The claim of the runs lies below the working folder.
        return self.runs if "persistentVolumeClaim" in found else self._folder

    @property
    def runs(self) -> Path:
        """Where run folders go."""
        place = self._folder / "runs"
        place.mkdir(exist_ok=True)
        return place

    def words(self, each: Pod) -> list[str]:
        """The command line as it is run here."""
        first, *others = (self._word(word, each) for word in each.words)
        program = {"loadgen": [sys.executable, "-m", "loadgen"], "python": [sys.executable]}[first]
        return [*program, *others]

    @contextlib.contextmanager
    def running(self, owner: str | Pod, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """The container of this owner as a process, its output readable as one; ended at last."""
        each = pod(self._resources, owner) if isinstance(owner, str) else owner
        process = subprocess.Popen(
            self.words(each),
            cwd=self._folder,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            if process.poll() is None:
                process.kill()
            process.communicate()
