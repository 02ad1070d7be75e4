"""Host checks: pure functions of a host's facts, and their table.

All thresholds are constants below.
"""

from collections.abc import Iterator

from nsqcy.doctor.checks import Check, size
from nsqcy.doctor.facts import Host, Port
from nsqcy.doctor.findings import Finding, error, note, ok, warning
from nsqcy.process.openfiles import FEW

MIN_FILES = 4_096  # open files; a lower limit allows only a few thousand clients
NEARLY = 0.8  # share of a limit
STEP = 60.0  # seconds
MIN_MEMORY = 256 << 20
STRICT = 2  # value of vm.overcommit_memory: never overcommit
MIN_BACKLOG = 1_024
PYTHON = (3, 11)


def config(host: Host) -> Iterator[Finding]:
    file = host.config
    assert file is not None
    if file.error:
        yield error(file.error, f"see docs/CONFIG.md, or `nsqcy config sample {file.daemon}`")
        return
    for each in file.warnings:
        yield warning(each, "remove or correct it")
    if not file.warnings:
        yield ok(f"{file.path}: valid for {file.daemon}; options set: {file.options_set}")


def libraries(host: Host) -> Iterator[Finding]:
    found = ".".join(map(str, host.python))
    if host.python[:2] < PYTHON:
        yield error(f"python {found} is too old", "install python 3.11 or later")
    for each in host.broken_modules:
        yield error(each, "reinstall nsqcy for this python")
    for package in host.packages:
        wanted = f"{package.name} {package.oldest} or later"
        if not package.found:
            yield error(f"{package.name} is not installed", f"pip install '{wanted}'")
        elif version(package.found) < version(package.oldest):
            text = f"{package.name} {package.found} is too old: {wanted} is required"
            yield error(text, f"pip install --upgrade {package.name}")
    if not host.packages:
        yield note("nsqcy is not installed as a package: its dependencies are unknown")


def version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without trailing zeros."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def open_files(host: Host) -> Iterator[Finding]:
    advice = "raise LimitNOFILE= in the service unit, or ulimit -Hn before starting the daemon"
    hard = host.files_hard
    if hard < MIN_FILES:
        text = f"only {hard} open files are allowed, and each connection uses a file descriptor"
        yield error(text, advice)
    elif hard < FEW:
        text = f"a limit of {hard} open files is low: each connection uses a file descriptor"
        yield warning(text, advice)
    else:
        yield ok(f"{hard} open files are allowed")
    for port in host.ports:
        process = port.process
        if process and process.max_files and process.files >= NEARLY * process.max_files:
            text = f"pid {process.pid} has {process.files} of {process.max_files} files open"
            yield error(f"{text} ({process.command})", advice)
    if host.files_on_machine:
        used, maximum = host.files_on_machine
        if used >= NEARLY * maximum:
            text = f"{used} of {maximum} files are open on this machine"
            yield warning(text, "raise sysctl fs.file-max")


def clock(host: Host) -> Iterator[Finding]:
    found = host.clock
    if found.synchronised is False:
        text = "the kernel reports that the clock is not synchronised"
        yield warning(
            text, "run chrony, systemd-timesyncd or ntpd: deferred messages depend on the clock"
        )
    elif found.synchronised is None:
        yield note("cannot determine whether the clock is synchronised")
    if found.stepped is not None and abs(found.stepped) > STEP:
        way = "forward" if found.stepped > 0 else "back"
        text = f"the clock has been set {way} by {abs(found.stepped):.0f} s since boot"
        yield note(text, "set the clock before daemons start, and only slew it afterwards")


def memory(host: Host) -> Iterator[Finding]:
    found, wanted = host.memory, host.wanted
    free = f"{size(found.available)} of memory is available within all cgroup limits"
    if wanted.memory_bytes * wanted.workers > found.available:
        text = f"{wanted.workers} workers with this --memory-bytes exceed the limit: {free}"
        yield error(
            text, "lower --memory-bytes, or leave it unset to use half of the available memory"
        )
    elif found.available < MIN_MEMORY:
        text = f"{free}: messages overflow to disk and are read back one by one"
        yield warning(text, "give the machine or its cgroup more memory")
    else:
        yield ok(free)
    if found.overcommit == STRICT and found.committed >= NEARLY * found.commit_limit:
        text = "vm.overcommit_memory is 2, and the commit limit is nearly reached"
        yield warning(text, "set sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio")
    if found.kills_groups:
        text = "without memory, the kernel kills all processes of the cgroup (memory.oom.group)"
        advice = "if messages of class memory must survive this, set memory.oom.group to 0"
        yield note(text, advice)


def cpus(host: Host) -> Iterator[Finding]:
    if host.wanted.workers > host.cpus:
        text = f"{host.wanted.workers} workers for {host.cpus} usable CPUs"
        yield warning(
            text, "set --workers to at most the number of CPUs that cgroup and affinity allow"
        )
    else:
        yield ok(f"{host.cpus} usable CPUs for {host.wanted.workers} workers")


def kernel(host: Host) -> Iterator[Finding]:
    for call in host.missing_calls:
        text = f"the system call {call}, which workers need, is not available"
        yield error(text, "allow it in the seccomp profile, or use Linux 4.5 or later")
    if host.somaxconn is not None and host.somaxconn < MIN_BACKLOG:
        text = f"net.core.somaxconn is {host.somaxconn}: bursts of connections are refused"
        yield warning(text, "run sysctl -w net.core.somaxconn=4096, and set it in /etc/sysctl.d")
    if not host.memory.collapses:
        text = "the kernel does not know MADV_COLLAPSE, so new memory uses more CPU"
        yield note(text, "use Linux 6.1 or later")


def ports(host: Host) -> Iterator[Finding]:
    for port in host.ports:
        yield _port(port, host.wanted.daemon)


def _port(port: Port, daemon: str) -> Finding:
    where = f"--{port.flag} {port.address}"
    if port.error:
        return error(f"{where}: {port.error}", f"set --{port.flag} to an address of this machine")
    if not port.busy:
        return ok(f"{where} is free")
    process = port.process
    if process is None:
        text = f"{where} is in use (run as root to see by which process)"
        advice = f"if it is not {daemon}, stop that process or set a different --{port.flag}"
        return note(text, advice)
    who = f"pid {process.pid} ({process.command})"
    if daemon in process.command:
        return ok(f"{where}: {who} is listening")
    return error(f"{where} is in use by {who}", f"stop it, or set a different --{port.flag}")


CHECKS = (
    Check(
        "config",
        "the `--config` file: unknown keys, invalid values, settings that have no effect",
        "",
        config,
        lambda host: host.config,
    ),
    Check(
        "libraries",
        "Python and the packages that nsqcy needs: missing, too old, or not built for this Python",
        "python and packages meet the requirements",
        libraries,
    ),
    Check(
        "open-files",
        f"the hard limit on open files (below {FEW:,}); open files of running daemons and of the "
        f"machine (at {NEARLY:.0%} of the limit)",
        "",
        open_files,
    ),
    Check(
        "clock",
        "whether the kernel reports the clock as synchronised; whether it has been stepped by more "
        f"than {STEP:.0f} s since boot",
        "the clock is synchronised",
        clock,
    ),
    Check(
        "memory",
        "available memory within all cgroup limits, compared with `--memory-bytes` of all workers;"
        " the commit limit with vm.overcommit_memory=2; whether the kernel kills all processes of"
        " the cgroup at once",
        "",
        memory,
    ),
    Check("cpus", "more workers than CPUs allowed by affinity and cgroup", "", cpus),
    Check(
        "kernel",
        f"net.core.somaxconn (below {MIN_BACKLOG:,}); system calls that workers need (memfd_create,"
        " eventfd); kernels without MADV_COLLAPSE",
        "the kernel meets the requirements",
        kernel,
    ),
    Check(
        "ports",
        "each address in the options: free, in use, not local to this machine, or blocked by a"
        " file",
        "the options contain no address",
        ports,
    ),
)
