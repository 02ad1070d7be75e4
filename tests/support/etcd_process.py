"""Members of an etcd cluster under test."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest

from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.errors import RequestError
from nsqcy.etcd.client import Credentials, EtcdClient, parse_endpoint
from nsqcy.etcd.messages import Put
from support.logged_process import Logged
from support.nsqd_process import START_BUDGET, free_port


class Member(Logged):
    """An etcd process, which keeps its ports and data when it is restarted."""

    def __init__(
        self, name: str, folder: Path, certificates: Path | None, host: str = "127.0.0.1"
    ) -> None:
        super().__init__()
        self.name = name
        self.folder = folder
        self.certificates = certificates
        scheme = "https" if certificates else "http"
        self.client_url = f"{scheme}://{host}:{free_port()}"
        self.peer_url = f"http://127.0.0.1:{free_port()}"

    def start(self, members: list["Member"]) -> None:
        words = [
            "etcd",
            f"--name={self.name}",
            f"--data-dir={self.folder}",
            f"--listen-client-urls={self.client_url}",
            f"--advertise-client-urls={self.client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            "--initial-cluster=" + ",".join(f"{each.name}={each.peer_url}" for each in members),
            "--heartbeat-interval=100",
            "--election-timeout=1000",
        ]
        if self.certificates:
            words += [
                f"--cert-file={self.certificates / 'server.pem'}",
                f"--key-file={self.certificates / 'server.key'}",
                f"--trusted-ca-file={self.certificates / 'ca.pem'}",
                "--client-cert-auth",
            ]
        self._spawn(words)


class Etcd:
    """An etcd cluster in its own directory."""

    def __init__(
        self, members: int = 1, certificates: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        """
        host: address at which clients reach the members
        """
        self._folder = Path(tempfile.mkdtemp(prefix="etcd-"))
        self.terms = Terms(connect_timeout=2.0, request_timeout=5.0)
        if certificates:
            self.terms = Terms(
                root_ca_file=str(certificates / "ca.pem"),
                cert_file=str(certificates / "client.pem"),
                key_file=str(certificates / "client.key"),
            )
        self.members = [
            Member(f"m{index}", self._folder / str(index), certificates, host)
            for index in range(members)
        ]

    def __enter__(self) -> Self:
        for member in self.members:
            member.start(self.members)
        self.await_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
        shutil.rmtree(self._folder)

    def erase(self) -> None:
        """Replace the cluster with an empty one at the same addresses."""
        for member in self.members:
            member.kill()
            shutil.rmtree(member.folder)
        for member in self.members:
            member.start(self.members)
        self.await_ready()

    def save(self) -> Path:
        """Return a snapshot of a cluster with a single member."""
        path = Path(tempfile.mkdtemp(dir=self._folder)) / "snapshot"
        self.control("snapshot", "save", str(path))
        return path

    def restore(self, snapshot: Path) -> None:
        """Replace the data of a single member with a snapshot, possibly of another cluster."""
        (member,) = self.members
        member.kill()
        shutil.rmtree(member.folder)
        _restored(member, snapshot)
        self.restart(member)

    def raise_revision(self, revision: int) -> None:
        """Make another program change its own keys until the revision is higher than this."""
        client = self.client()
        while client.read("/other/")[1] <= revision:
            client.transact([], [Put("/other/key", b"")])

    def revision(self) -> int:
        return self.client().read("/other/")[1]

    def restart(self, member: Member) -> None:
        member.start(self.members)
        self.await_ready()

    def await_ready(self) -> None:
        """Wait until every running member has a leader."""
        deadline = time.monotonic() + START_BUDGET
        for member in self.members:
            while member.alive() and not self._is_healthy(member):
                if time.monotonic() > deadline:
                    raise AssertionError(f"etcd is not ready; its log:\n{member.log_text()}")
                time.sleep(0.05)

    def _is_healthy(self, member: Member) -> bool:
        url = parse_endpoint(member.client_url)._replace(path="/health")
        try:
            return b'"true"' in WebClient(self.terms).ask(url, maximum=1000).body
        except RequestError:
            return False

    def client(self, credentials: Credentials | None = None) -> EtcdClient:
        endpoints = [parse_endpoint(member.client_url) for member in self.members]
        return EtcdClient(endpoints, self.terms, credentials)

    def control(self, *words: str) -> str:
        """Run etcdctl."""
        found = subprocess.run(
            ["etcdctl", f"--endpoints={self.members[0].client_url}", *words],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout


def _restored(member: Member, snapshot: Path) -> None:
    words = (
        f"--name={member.name}",
        f"--initial-cluster={member.name}={member.peer_url}",
        f"--initial-advertise-peer-urls={member.peer_url}",
        f"--data-dir={member.folder}",
    )
    subprocess.run(
        ["etcdctl", "snapshot", "restore", str(snapshot), *words],
        env={**os.environ, "ETCDCTL_API": "3"},
        capture_output=True,
        check=True,
    )


needs_etcd = pytest.mark.skipif(not shutil.which("etcd"), reason="etcd is not installed")
