"""conf/helm: Helm accepts the chart, its defaults are the manifests of conf/kubernetes, and the
daemons accept the files that it renders."""

import re
from pathlib import Path
from typing import Any

import pytest

import nsqcy
from nsqcy.config import loader
from nsqcy.config.durations import SECOND, parse_duration
from nsqcy.nsqd.master.worker_lifecycle import KILL_LIMIT, STOP_LIMIT
from support.daemon_tables import DAEMONS
from support.kubernetes_manifests import (
    OBJECTS,
    ROOT,
    WORKLOADS,
    Object,
    Workload,
    check_schema,
)

helm: Any = pytest.importorskip("helm_python")
yaml: Any = pytest.importorskip("yaml")

CHART = ROOT / "conf" / "helm" / "nsqcy"
RELEASE = "rel"
VERSIONS = ("1.28", "1.37")
ERRORS = 2  # the lowest severity above "information"

# What the chart adds to an object of conf/kubernetes.
ADDED = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "app.kubernetes.io/part-of",
    "checksum/config",
    "helm.sh/chart",
    "imagePullPolicy",
}
COMMON = {
    "podAnnotations": {"a": "b"},
    "priorityClassName": "high",
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "nsq", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "extraVolumes": [{"name": "users", "secret": {"secretName": "users"}}],
    "extraVolumeMounts": [{"name": "users", "mountPath": "/etc/nsqcy-users"}],
}
EVERYTHING: Object = {
    "image": {"repository": "registry.example/nsqcy", "tag": "7", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "nsqd": COMMON
    | {
        "replicas": 5,
        "config": {"max_msg_size": 104857600, "snappy": False, "msg_timeout": "2m"},
        "policies": "[topic orders.*]\ndurability = fsync\n",
        "lookupdTcpAddresses": ["other:4160"],
        "extraArgs": ["--verbose"],
        "persistence": {"size": "100Gi", "storageClass": "fast", "annotations": {"c": "d"}},
        "tls": {"secretName": "nsqd-tls", "required": True, "clientAuthPolicy": "require-verify"},
        "podDisruptionBudget": {"maxUnavailable": "25%"},
    },
    "nsqlookupd": COMMON | {"replicas": 2, "config": {"inactive_producer_timeout": "1m"}},
    "nsqadmin": COMMON | {"config": {"base_path": "/nsq"}, "extraArgs": ["--verbose"]},
}
VALUES: dict[str, Object] = {
    "defaults": {},
    "everything": EVERYTHING,
    "little": {
        "nsqd": {"persistence": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
        "nsqlookupd": {"podDisruptionBudget": {"enabled": False}},
        "nsqadmin": {"enabled": False},
    },
}

each_set = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())


def rendered(values: Object) -> list[Object]:
    """Return the objects that Helm creates, without the name of the release."""
    chart = helm.Chart.load(CHART)
    files = chart.render(values, name=RELEASE, namespace="nsq")
    text = "\n---\n".join(each for name, each in files.items() if name.endswith(".yaml"))
    return [each for each in yaml.safe_load_all(text.replace(f"{RELEASE}-", "")) if each]


def of_kind(objects: list[Object], *kinds: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] in kinds}


def workloads(objects: list[Object]) -> dict[str, Workload]:
    found = of_kind(objects, "StatefulSet", "Deployment")
    return {name: Workload(name, each["spec"]) for name, each in found.items()}


def without_additions(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: without_additions(each) for key, each in value.items() if key not in ADDED}
        return {key: each for key, each in kept.items() if each != {}}
    if isinstance(value, list):
        return [without_additions(each) for each in value]
    return value


def write_file(objects: list[Object], daemon: str, folder: Path) -> str:
    """Write a daemon's INI file, and return the flag for it."""
    (text,) = of_kind(objects, "ConfigMap")[daemon]["data"].values()
    path = folder / f"{daemon}.ini"
    path.write_text(text)
    return f"--config={path}"


def options_of(objects: list[Object], daemon: str, folder: Path) -> Any:
    """Return the options that a daemon reads from its INI file, without warnings."""
    table, resolve, _ = DAEMONS[daemon]
    settings = loader.load(table, [write_file(objects, daemon, folder)])
    assert settings.warnings == []
    return resolve(settings)


def values_of(daemon: str, flag: str) -> Object:
    """Return the values of all options except `config`, which names the file."""
    table, _, _ = DAEMONS[daemon]
    settings = loader.load(table, [flag])
    return {each.name: settings[each.name] for each in table if each.name != "config"}


@each_set
def test_helm_has_nothing_to_say(values: Object) -> None:
    report = helm.lint(CHART, values, strict=True, namespace="nsq")
    assert report["total_charts_linted"] == 1 and not report["errors"]
    assert not [each for each in report["messages"] if each["severity"] >= ERRORS]


@pytest.mark.parametrize("version", VERSIONS)
@each_set
def test_the_schemas_of_kubernetes_take_all_objects(values: Object, version: str) -> None:
    for each in rendered(values):
        check_schema(each, version)


def test_the_defaults_are_the_manifests() -> None:
    theirs = [each for each in OBJECTS if each["kind"] != "Namespace"]
    ours = [each for each in rendered({}) if each["kind"] != "ConfigMap"]
    assert len(ours) == len(theirs)
    by_name = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in ours}
    for each in theirs:
        spec = without_additions(by_name[each["kind"], each["metadata"]["name"]])
        if "template" in spec:
            (container,) = spec["template"]["spec"]["containers"]
            container["image"] = container["image"].partition(":")[0]
        assert spec == each["spec"], each["metadata"]["name"]


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_default_files_set_the_same_options(daemon: str, tmp_path: Path) -> None:
    (flag,) = [each for each in WORKLOADS[daemon].words if each.startswith("--config=")]
    ours = write_file(rendered({}), daemon, tmp_path)
    assert values_of(daemon, ours) == values_of(daemon, flag)


def test_files_hold_the_given_options(tmp_path: Path) -> None:
    objects = rendered(EVERYTHING)
    nsqd = options_of(objects, "nsqd", tmp_path)
    assert (nsqd.max_msg_size, nsqd.msg_timeout, nsqd.snappy) == (104857600, 120 * SECOND, False)
    assert list(nsqd.lookupd_tcp_address) == ["nsqlookupd:4160", "other:4160"]
    (section,) = loader.load(DAEMONS["nsqd"][0], [f"--config={tmp_path}/nsqd.ini"]).patterns
    assert list(section.values) == ["durability"]
    admin = options_of(objects, "nsqadmin", tmp_path)
    assert admin.base_path == "/nsq"
    pods = [f"nsqlookupd-{index}.nsqlookupd:4161" for index in range(2)]
    assert list(admin.lookupd_http_address) == pods
    lookupd = options_of(objects, "nsqlookupd", tmp_path)
    assert lookupd.inactive_producer_timeout == 60 * SECOND


def test_tls_files_are_mounted(tmp_path: Path) -> None:
    objects = rendered(EVERYTHING)
    nsqd = workloads(objects)["nsqd"]
    options = options_of(objects, "nsqd", tmp_path)
    (mount,) = [each for each in nsqd.container["volumeMounts"] if each["name"] == "tls"]
    files = (options.tls_cert, options.tls_key, options.tls_root_ca_file)
    assert {str(Path(each).parent) for each in files} == {mount["mountPath"]}
    (volume,) = [each["secret"] for each in nsqd.pod["volumes"] if each["name"] == "tls"]
    assert volume == {"secretName": "nsqd-tls", "defaultMode": 0o440}
    assert nsqd.ports["https"] == 4152 and "--https-address=0.0.0.0:4152" in nsqd.words
    for name in ("nsqd", "nsqd-publish"):
        ports = of_kind(objects, "Service")[name]["spec"]["ports"]
        assert "https" in [each["name"] for each in ports]


def test_probes_stay_answered_if_clients_need_tls(tmp_path: Path) -> None:
    options = options_of(rendered(EVERYTHING), "nsqd", tmp_path)
    assert options.tls_required == 1  # for everything except plain HTTP
    assert options.tls_client_auth_policy == "require-verify"


def test_messages_are_on_a_volume_only_if_wanted() -> None:
    nsqd = workloads(rendered(VALUES["little"]))["nsqd"]
    assert "volumeClaimTemplates" not in nsqd.spec
    assert {"name": "data", "emptyDir": {"sizeLimit": "10Gi"}} in nsqd.pod["volumes"]
    (claim,) = workloads(rendered(EVERYTHING))["nsqd"].spec["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"] == {"storage": "100Gi"}


def test_a_changed_file_restarts_its_pods() -> None:
    def checksums(values: Object) -> dict[str, str]:
        return {
            name: each.spec["template"]["metadata"]["annotations"]["checksum/config"]
            for name, each in workloads(rendered(values)).items()
        }

    before, after = checksums({}), checksums({"nsqd": {"config": {"max_rdy_count": 7}}})
    assert before["nsqd"] != after["nsqd"] and before["nsqadmin"] == after["nsqadmin"]


def test_each_release_selects_its_own_pods() -> None:
    for each in workloads(rendered({})).values():
        assert each.spec["selector"]["matchLabels"]["app.kubernetes.io/instance"] == RELEASE


def test_there_is_time_to_drain_and_to_save() -> None:
    values = helm.Chart.load(CHART).values["nsqd"]
    needed = parse_duration(values["drainTimeout"]) / SECOND + STOP_LIMIT + KILL_LIMIT
    assert values["terminationGracePeriodSeconds"] > needed


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"nsqd": {"replica": 3}}, "replica"),
        ({"nsqd": {"config": {"max_msg_size": 1.5}}}, "max_msg_size"),
        ({"nsqd": {"config": {"--verbose": "true"}}}, "--verbose"),
        ({"nsqd": {"drainTimeout": "5m'; reboot"}}, "drainTimeout"),
        ({"nsqd": {"tls": {"clientAuthPolicy": "maybe"}}}, "clientAuthPolicy"),
        ({"nsqlookupd": {"replicas": 0}}, "replicas"),
    ],
)
def test_wrong_values_are_refused(values: Object, name: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(name)):
        helm.Chart.load(CHART).validate_schema(values)


def test_the_chart_is_of_this_version() -> None:
    metadata = helm.Chart.load(CHART).metadata
    assert metadata["version"] == metadata["appVersion"] == nsqcy.__version__
