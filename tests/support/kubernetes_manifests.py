"""The manifests of conf/kubernetes, and the image that they run, for tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

yaml: Any = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "conf" / "kubernetes"

Object = dict[str, Any]


def check_schema(thing: Object, version: str) -> None:
    """Check an object against the schema of a version of Kubernetes. The import takes
    two seconds."""
    validate: Any = pytest.importorskip("kubernetes_validate")
    validate.validate(thing, version, strict=True)


def documents(name: str) -> list[Object]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


KUSTOMIZATION: Object = documents("kustomization.yaml")[0]
OBJECTS = [each for name in KUSTOMIZATION["resources"] for each in documents(name)]


def of_kind(*kinds: str) -> dict[str, Object]:
    """By name."""
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] in kinds}


SERVICES = {name: each["spec"] for name, each in of_kind("Service").items()}


class Workload(NamedTuple):
    """A StatefulSet or Deployment with one container."""

    name: str
    spec: Object

    @property
    def pod(self) -> Object:
        found: Object = self.spec["template"]["spec"]
        return found

    @property
    def container(self) -> Object:
        (found,) = self.pod["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def words(self) -> list[str]:
        """Return the flags, with an example for each variable."""
        words = []
        for word in self.container["args"][1:]:
            for variable in self.container.get("env", []):
                example = "2" if variable["name"] == "POD_INDEX" else "example"
                word = word.replace(f"$({variable['name']})", example)
            assert "$" not in word
            words.append(word.replace("/etc/nsqcy/", f"{FOLDER}/"))
        return words

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    def probes(self) -> Iterator[Object]:
        for name, probe in self.container.items():
            if name.endswith("Probe"):
                yield probe["httpGet"]


WORKLOADS = {
    name: Workload(name, each["spec"])
    for name, each in of_kind("StatefulSet", "Deployment").items()
}


def before_stopping() -> str:
    """Return the script that nsqd's pod runs first."""
    hook = WORKLOADS["nsqd"].container["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:2] == ["/bin/sh", "-c"] and len(hook) == 3
    script: str = hook[2]
    return script
