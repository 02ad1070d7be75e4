"""`nsqcy copies force`: a group whose other members never return gets an owner again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.cli.copies import force
from nsqcy.cli.main import main
from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.values import encode_group, encode_identity
from nsqcy.etcd.messages import Put
from support.copies_cluster import Machine, until
from support.etcd_process import Etcd, needs_etcd

pytestmark = needs_etcd

GROUP = Group("g", 3, "a", "a.1", ("a", "b", "c"), 3, 2, "n", "os")
SESSION = b'{"node": "%s", "machine": "%s", "address": "host:1"}'


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as etcd:
        yield etcd


class Values:
    """The values in a separate cluster's etcd."""

    def __init__(self, etcd: Etcd, cluster: str, folder: Path) -> None:
        self.client = etcd.client()
        self.prefix = f"/nsqcy/{cluster}/"
        self.config = folder / "nsqd.ini"
        endpoint = etcd.members[0].client_url
        self.config.write_text(f"[nsqd]\netcd_endpoints = {endpoint}\ncluster = {cluster}\n")

    def put(self, key: str, value: bytes) -> None:
        assert self.client.transact([], [Put(self.prefix + key, value)])

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.put(f"sessions/{node}.2", SESSION % (node.encode(), node.encode()))

    def put_group(self, group: Group) -> None:
        self.put(f"groups/{group.id}", encode_group(group))

    def group(self) -> bytes:
        return self.client.read(f"{self.prefix}groups/")[0][0].value

    def force(self, *words: str) -> int:
        return main(["copies", "force", "g", f"--config={self.config}", *words])


@pytest.fixture
def values(etcd: Etcd, tmp_path: Path, request: pytest.FixtureRequest) -> Values:
    return Values(etcd, request.node.originalname, tmp_path)


def test_the_group_is_changed_when_the_user_agrees(
    values: Values, capfd: pytest.CaptureFixture[str]
) -> None:
    values.put_group(GROUP)
    values.start("b", "c", "d")
    values.put("claims/g/b", b'{"format":1,"nonce":"n","epoch":2,"size":700}')
    assert values.force() == 1
    out, err = capfd.readouterr()
    assert "to abandon, with all messages that only they have:\n  a\nremaining members:\n" in out
    assert "  b at host:1, 700 bytes of epoch 2\n  c at host:1\n" in out
    assert "The group's messages will be moved to the topics with the same names.\n" in out
    assert out.endswith("Nothing was changed. Add --yes to change the group.\n") and not err
    assert values.group() == encode_group(GROUP)

    assert values.force("--yes") == 0
    assert capfd.readouterr().out.startswith(out.partition("\n\nNothing")[0])
    forced = values.group()
    assert b'"owner":"b","session":"","members":["b","c"]' in forced
    assert b'"closed":true' in forced and b'"nonce":"n"' not in forced


def test_groups_that_need_no_force(values: Values, capfd: pytest.CaptureFixture[str]) -> None:
    def refusal() -> str:
        assert values.force("--yes") == 1
        out, err = capfd.readouterr()
        assert not out
        return err.removeprefix("nsqcy copies force: ")

    assert refusal().startswith("cluster test_groups_that_need_no_force has no group g")
    values.put("groups/g", b"{}")
    assert refusal().startswith("the value of group g is invalid: registry format")
    values.put_group(GROUP)
    assert refusal() == "no member of group g has a session: start nsqd on one of a, b, c\n"
    values.put("sessions/a.1", SESSION % (b"a", b"a"))
    assert refusal() == "the owner of group g, a, is running (it has a session)\n"
    values.put_group(GROUP.released("m"))
    values.start("a", "b", "c")
    assert refusal() == "all members of group g are back: one of them will take over\n"
    values.put_group(GROUP.finished("m"))
    assert refusal() == "group g has ended: all of its messages have been moved\n"


@pytest.mark.parametrize("key", ["groups/g", "sessions/a.1", "identity"])
def test_a_change_meanwhile_wins(values: Values, key: str) -> None:
    values.put_group(GROUP)
    values.client.transact([], deletes=[f"{values.prefix}sessions/a.1"])
    values.start("b")
    other = encode_group(GROUP.released("m"))

    changes = {
        "groups/g": other,
        "sessions/a.1": SESSION % (b"a", b"a"),
        "identity": encode_identity(Identity("r2", 2)),
    }

    def meanwhile(text: str) -> None:
        values.put(key, changes[key])

    with pytest.raises(force.Refused, match="changed in the meantime"):
        force.give_up(
            values.client, values.prefix.split("/")[2], "g", is_agreed=True, say=meanwhile
        )
    assert values.group() == (other if key == "groups/g" else encode_group(GROUP))


def test_etcd_that_does_not_respond(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "nsqd.ini"
    config.write_text("[nsqd]\netcd_endpoints = http://127.0.0.1:1\n")
    assert main(["copies", "force", "g", f"--config={config}"]) == 1
    assert capfd.readouterr().err.startswith("nsqcy copies force: etcd: http://127.0.0.1:1")
    config.write_text("[nsqd]\n")
    assert main(["copies", "force", "g", f"--config={config}"]) == 1
    assert "has no etcd_endpoints" in capfd.readouterr().err


def test_a_member_that_is_not_whole_owns_a_forced_group(etcd: Etcd, tmp_path: Path) -> None:
    machines = [Machine(tmp_path / str(number), etcd) for number in range(2)]
    owner, other = machines
    until(lambda: len(owner.host.worker.sessions) == 2)
    group_id = owner.host.create_group("os", 2, 2)
    until(lambda: (group := owner.group(group_id)) and len(group.members) == 2)
    owner.logs[group_id].append(1)
    until(lambda: owner.logs[group_id].done == [0])
    contents = owner.contents(group_id)
    for machine in machines:
        machine.stop()
    # The other machine was switched off, and the first one never returns.
    other.boot = "later"
    other.start()
    until(lambda: (group := other.group(group_id)) and not group.session)
    assert group_id not in other.logs

    cluster = other.settings.cluster
    assert force.give_up(etcd.client(), cluster, group_id, is_agreed=True, say=len) == 0
    until(lambda: group_id in other.logs)
    group = other.logs[group_id].group
    assert group.closed and group.members == (other.name,)
    assert other.contents(group_id) == contents
    machines[0] = Machine(tmp_path / "replacement", etcd)
    until(lambda: (group := other.group(group_id)) and machines[0].name in group.members)
    for machine in machines:
        machine.stop()
