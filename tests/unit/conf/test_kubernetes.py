"""conf/kubernetes: the manifests fit the daemons, the image and each other."""

import re

import pytest

import nsqcy
from nsqcy.config import loader
from nsqcy.config.durations import SECOND, parse_duration
from nsqcy.config.options import Options
from nsqcy.net import listeners
from nsqcy.nsqd import options as nsqd
from nsqcy.nsqd.master.worker_lifecycle import KILL_LIMIT, STOP_LIMIT
from support.daemon_tables import DAEMONS
from support.kubernetes_manifests import (
    FOLDER,
    KUSTOMIZATION,
    OBJECTS,
    SERVICES,
    WORKLOADS,
    Object,
    Workload,
    before_stopping,
    check_schema,
    of_kind,
)

OLDEST, NEWEST = "1.28", "1.37"  # the first version that labels pods with their index

each_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda each: each.name)


def options_of(workload: Workload) -> Options:
    """Return the daemon's options from its flags and its file, without warnings."""
    table, resolve, _ = DAEMONS[workload.name]
    settings = loader.load(table, workload.words)
    assert settings.warnings == []
    options = resolve(settings)
    assert isinstance(options, Options)
    return options


def ports_of(addresses: list[str]) -> dict[str, int]:
    """By host."""
    return {each.host: int(each.port) for each in map(listeners.parse, addresses)}


def test_all_that_is_there_is_used() -> None:
    files = {path.name for path in FOLDER.iterdir()}
    generated = {name for each in KUSTOMIZATION["configMapGenerator"] for name in each["files"]}
    assert files == {"kustomization.yaml", *KUSTOMIZATION["resources"], *generated}
    assert WORKLOADS.keys() == DAEMONS.keys()


def test_the_image_is_of_this_version() -> None:
    (image,) = KUSTOMIZATION["images"]
    assert image["newTag"] == nsqcy.__version__
    assert {each.container["image"] for each in WORKLOADS.values()} == {image["name"]}


@each_workload
def test_the_daemon_takes_its_flags_and_its_file(workload: Workload) -> None:
    assert workload.container["args"][0] == workload.name
    assert f"--config={FOLDER}/{workload.name}.ini" in workload.words
    (volume,) = [each["configMap"]["name"] for each in workload.pod["volumes"]]
    maps = {each["name"]: each["files"] for each in KUSTOMIZATION["configMapGenerator"]}
    assert maps[volume] == [f"{workload.name}.ini"]
    options_of(workload)


@each_workload
def test_ports_fit(workload: Workload) -> None:
    options = options_of(workload)
    kinds = workload.ports.keys()
    listening = {
        each: int(listeners.parse(getattr(options, f"{each}_address")).port) for each in kinds
    }
    assert workload.ports == listening
    labels = workload.spec["template"]["metadata"]["labels"]
    its = [each for each in SERVICES.values() if each["selector"].items() <= labels.items()]
    assert its
    for service in its:
        assert {port["name"]: port["port"] for port in service["ports"]} == workload.ports
        if service.get("clusterIP") != "None":
            assert all(port["targetPort"] == port["name"] for port in service["ports"])


@each_workload
def test_probes_are_answered(workload: Workload) -> None:
    routes = DAEMONS[workload.name][2]
    paths = {route.path for route in routes if route.method == "GET"}
    probes = list(workload.probes())
    assert len(probes) >= 2
    assert {probe["path"] for probe in probes} <= paths
    assert {probe["port"] for probe in probes} <= workload.ports.keys()


@each_workload
def test_nobody_gets_more_than_needed(workload: Workload) -> None:
    everywhere = workload.pod["securityContext"]
    assert everywhere["runAsNonRoot"] and everywhere["seccompProfile"]["type"] == "RuntimeDefault"
    context = workload.container["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert workload.pod["automountServiceAccountToken"] is False
    assert workload.container["resources"]["limits"].keys() == {"memory"}


@pytest.mark.parametrize("name", of_kind("StatefulSet"))
def test_pods_announce_a_name_that_leads_to_them(name: str) -> None:
    workload = WORKLOADS[name]
    service = SERVICES[workload.spec["serviceName"]]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
    announced = f"--broadcast-address=$(POD_NAME).{workload.spec['serviceName']}"
    assert f"{announced}.$(POD_NAMESPACE).svc" in workload.container["args"]


@pytest.mark.parametrize("name", of_kind("StatefulSet"))
def test_one_pod_at_a_time_is_taken_away(name: str) -> None:
    budget = of_kind("PodDisruptionBudget")[name]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == WORKLOADS[name].spec["selector"]


def test_lookupds_are_found() -> None:
    lookupd = WORKLOADS["nsqlookupd"]
    registered = ports_of(options_of(WORKLOADS["nsqd"]).lookupd_tcp_address)
    assert registered == {lookupd.spec["serviceName"]: lookupd.ports["tcp"]}
    asked = ports_of(options_of(WORKLOADS["nsqadmin"]).lookupd_http_address)
    pods = [f"{lookupd.name}-{index}" for index in range(lookupd.spec["replicas"])]
    assert asked == {f"{pod}.{lookupd.spec['serviceName']}": lookupd.ports["http"] for pod in pods}


def test_there_is_time_to_drain_and_to_save() -> None:
    (limit,) = re.findall(r"/config/drain\?timeout=(\w+)", before_stopping())
    needed = parse_duration(limit) / SECOND + STOP_LIMIT + KILL_LIMIT
    assert WORKLOADS["nsqd"].pod["terminationGracePeriodSeconds"] > needed


def test_data_is_on_the_volume() -> None:
    workload = WORKLOADS["nsqd"]
    mounts = {each["name"]: each["mountPath"] for each in workload.container["volumeMounts"]}
    (claim,) = workload.spec["volumeClaimTemplates"]
    options = options_of(workload)
    assert isinstance(options, nsqd.NsqdOptions)
    assert mounts[claim["metadata"]["name"]] == options.data_path
    storage = claim["spec"]["resources"]["requests"]["storage"]
    assert options.min_free_disk * 10 == int(storage.removesuffix("Gi")) * 10**9


def test_what_is_scraped_is_there() -> None:
    notes = WORKLOADS["nsqd"].spec["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(WORKLOADS["nsqd"].ports["http"])


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "thing", OBJECTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}"
)
def test_the_schemas_of_kubernetes_take_them(thing: Object, version: str) -> None:
    check_schema(thing, version)
