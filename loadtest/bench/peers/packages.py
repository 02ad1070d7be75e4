"""Debian packages of the peers: their versions, and the installation of missing packages.

Newly installed services are started neither now nor at the next boot. Packages that are
already installed stay unchanged.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loadtest.bench.peers.servers import program

POLICY = Path("/usr/sbin/policy-rc.d")  # run by Debian's packages before they start a service
UNITS = {
    "redis-server": ["redis-server.service"],
    "nats-server": ["nats-server.service"],
    "beanstalkd": ["beanstalkd.service"],
    "rabbitmq-server": ["rabbitmq-server.service", "epmd.socket", "epmd.service"],
    "etcd-server": ["etcd.service"],
}
PROGRAMS = {"etcd-server": "etcd"}  # programs not named after their package


def why_not(packages: Sequence[str]) -> dict[str, str]:
    """Return the reasons why packages cannot be used; installed packages are omitted."""
    return {
        each: f"{each} is not installed"
        for each in dict.fromkeys(packages)
        if not program(PROGRAMS.get(each, each))
    }


def install(packages: Sequence[str], say: Callable[[str], None]) -> dict[str, str]:
    """Install missing packages. Return the packages that cannot be used, each with the reason."""
    missing = why_not(packages)
    if not missing:
        return {}
    hindrance = _hindrance()
    if hindrance:
        return {package: f"{reason}, and {hindrance}" for package, reason in missing.items()}
    say(f"installing {', '.join(missing)}")
    with _without_services(list(missing)):
        for words in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", *missing]):
            done = _apt(words)
            if done.returncode:
                say(done.stdout[-2000:])
                break
    return {
        package: f"{reason}, and apt-get failed" for package, reason in why_not(packages).items()
    }


def _hindrance() -> str:
    if shutil.which("apt-get") is None:
        return "there is no apt-get"
    return "" if os.geteuid() == 0 else "only root can install it"


def _apt(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["apt-get", "-y", *words],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextlib.contextmanager
def _without_services(packages: Sequence[str]) -> Iterator[None]:
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink()
        if systemctl := shutil.which("systemctl"):
            units = [unit for package in packages for unit in UNITS[package]]
            subprocess.run([systemctl, "disable", *units], capture_output=True)


def version(package: str) -> str:
    """Return Debian's version string, without the parts that only Debian needs."""
    query = ["dpkg-query", "-W", "-f", "${Version}", package]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "of unknown version"
    return found.partition(":")[2] or found
