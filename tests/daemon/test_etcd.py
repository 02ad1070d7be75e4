"""The etcd client with real members: keys, leases, watches, failover, TLS and users."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.etcd.client import Credentials, EtcdClient
from nsqcy.etcd.messages import Change, Compacted, EtcdError, Expected, KeyValue, Put
from nsqcy.testing import certificates
from nsqcy.testing.http_requests import eventually
from support.etcd_process import Etcd, needs_etcd

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def client(etcd: Etcd) -> EtcdClient:
    """Client of the cluster that the tests of this module share: use unique prefixes."""
    return etcd.client()


def test_reads_more_than_a_page_at_one_revision(client: EtcdClient) -> None:
    keys = [f"/pages/{number:04}" for number in range(1200)]
    for first in range(0, len(keys), 100):
        assert client.transact([], [Put(key, b"v") for key in keys[first : first + 100]])
    client.transact([], [Put("/pagesafter", b"not found")])
    found, revision = client.read("/pages/")
    assert [each.key for each in found] == keys
    assert found[-1].revision < revision


def test_a_transaction_compares_whole_values(client: EtcdClient) -> None:
    assert client.transact([Expected("/txn/a", None)], [Put("/txn/a", b"\0\xff")])
    assert not client.transact([Expected("/txn/a", None)], [Put("/txn/a", b"again")])
    assert not client.transact([Expected("/txn/a", b"\0")], [Put("/txn/a", b"again")])
    held = [Expected("/txn/a", b"\0\xff"), Expected("/txn/b", None)]
    assert client.transact(held, [Put("/txn/b", b"")], ["/txn/a"])
    found, _ = client.read("/txn/")
    assert [(each.key, each.value) for each in found] == [("/txn/b", b"")]


def test_keys_end_with_their_lease(client: EtcdClient) -> None:
    lease = client.grant(60)
    client.transact([], [Put("/lease/a", b"", lease)])
    assert client.keep_alive(lease)
    client.revoke(lease)
    assert not client.keep_alive(lease)
    assert client.read("/lease/")[0] == []
    client.revoke(lease)


def test_a_key_of_a_silent_process_disappears(client: EtcdClient) -> None:
    client.transact([], [Put("/silent/a", b"", client.grant(1))])
    eventually(lambda: client.read("/silent/")[0] == [])


def test_a_watch_sends_every_change_after_its_revision(client: EtcdClient) -> None:
    client.transact([], [Put("/watch/a", b"1")])
    (before,), revision = client.read("/watch/")
    assert before == KeyValue("/watch/a", b"1", revision)
    with client.watch("/watch/", revision + 1) as watch:
        client.transact([], [Put("/watch/a", b"2"), Put("/watch/b", b"3")])
        client.transact([], [Put("/elsewhere", b"")])
        client.transact([], [], ["/watch/a"])
        found: list[Change] = []
        while len(found) < 3:
            found += watch.read()
    assert found == [
        Change("/watch/a", b"2", revision + 1),
        Change("/watch/b", b"3", revision + 1),
        Change("/watch/a", None, revision + 3),
    ]


def test_a_watch_of_compacted_changes_begins_again(etcd: Etcd, client: EtcdClient) -> None:
    for value in (b"1", b"2", b"3"):
        client.transact([], [Put("/old/a", value)])
    (found,), _ = client.read("/old/")
    etcd.control("compact", str(found.revision))
    with client.watch("/old/", found.revision - 1) as watch, pytest.raises(Compacted):
        while True:
            watch.read()


def test_close_ends_a_waiting_read(client: EtcdClient) -> None:
    watch = client.watch("/close/", 1)
    assert watch.read() == []  # the watch is created
    ended: list[EtcdError] = []

    def read() -> None:
        try:
            watch.read()
        except EtcdError as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    watch.close()
    thread.join(10)
    assert len(ended) == 1


def test_another_member_answers_when_one_dies() -> None:
    with Etcd(members=3) as etcd:
        client = etcd.client()
        client.transact([], [Put("/a", b"1")])
        watch = client.watch("/a", 1)
        etcd.members[0].kill()
        with pytest.raises(EtcdError):
            while True:
                watch.read()
        eventually(lambda: client.transact([], [Put("/a", b"2")]))
        assert client.read("/a")[0][0].value == b"2"
        etcd.members[1].kill()  # no majority is left
        with pytest.raises(EtcdError) as caught:
            client.read("/a")
        for member in etcd.members:
            assert member.client_url in str(caught.value)
        etcd.restart(etcd.members[1])
        assert client.read("/a")[0][0].value == b"2"


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority = certificates.make("ca", authority=True)
    authority.save(tmp_path)
    certificates.make("server", by=authority).save(tmp_path)
    certificates.make("client", by=authority).save(tmp_path)
    with Etcd(certificates=tmp_path) as etcd:
        client = etcd.client()
        client.transact([], [Put("/a", b"1")])
        with client.watch("/a", 1) as watch:
            found: list[Change] = []
            while not found:
                found += watch.read()
        assert found[0].value == b"1"
        watch = client.watch("/a", 100)
        watch.read()
        threading.Timer(0.1, watch.close).start()
        with pytest.raises(EtcdError):
            watch.read()


def test_users_and_expired_tokens() -> None:
    with Etcd() as etcd:
        etcd.control("user", "add", "root:secret")
        etcd.control("user", "add", "nsqcy:hush")
        etcd.control("role", "add", "nsqcy")
        etcd.control("role", "grant-permission", "nsqcy", "readwrite", "--prefix=true", "/nsqcy/")
        etcd.control("user", "grant-role", "nsqcy", "nsqcy")
        etcd.control("user", "grant-role", "root", "root")
        etcd.control("auth", "enable")
        client = etcd.client(Credentials("nsqcy", "hush"))
        assert client.transact([], [Put("/nsqcy/a", b"1")])
        with client.watch("/nsqcy/", 1) as watch:
            assert watch.read() == []
        with pytest.raises(EtcdError, match="permission denied"):
            client.read("/other/")

        # A change to the users invalidates all earlier tokens, as does a restart.
        etcd.control("--user=root:secret", "user", "add", "another:secret")
        assert client.transact([], [Put("/nsqcy/a", b"2")])
        etcd.members[0].kill()
        etcd.restart(etcd.members[0])
        assert client.transact([], [Put("/nsqcy/a", b"3")])
        assert client.read("/nsqcy/")[0][0].value == b"3"

        with pytest.raises(EtcdError, match="invalid user ID or password"):
            etcd.client(Credentials("nsqcy", "wrong")).read("/nsqcy/")
        with pytest.raises(EtcdError, match="user name is empty"):
            etcd.client().read("/nsqcy/")
