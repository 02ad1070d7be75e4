"""The checks of a host: pure functions of its facts, and the table of them.

Where a figure decides, it is one of the constants below.
"""

from collections.abc import Iterator

from nsqcy.doctor.checks import Check, size
from nsqcy.doctor.facts import Host, Port
from nsqcy.doctor.findings import Finding, note, ok, problem, warning
from nsqcy.process.openfiles import FEW

MIN_FILES = 4_096  # open files: with fewer a few thousand clients are refused
NEARLY = 0.8  # of a limit
STEP = 60.0  # seconds
MIN_MEMORY = 256 << 20
STRICT = 2  # vm.overcommit_memory: no more is promised than there is
MIN_BACKLOG = 1_024
PYTHON = (3, 11)


def config(host: Host) -> Iterator[Finding]:
    file = host.config
    assert file is not None
    if file.error:
        yield problem(file.error, f"see docs/CONFIG.md, or `nsqcy config sample {file.daemon}`")
        return
    for each in file.warnings:
        yield warning(each, "take it out, or write what was meant")
    if not file.warnings:
        yield ok(f"{file.path}: fit for {file.daemon}, {file.options_set} options set")


def libraries(host: Host) -> Iterator[Finding]:
    found = ".".join(map(str, host.python))
    if host.python[:2] < PYTHON:
        yield problem(f"python {found} is too old", "install python 3.11 or a later one")
    for each in host.broken_modules:
        yield problem(each, "install nsqcy again, for this python")
    for package in host.packages:
        wanted = f"{package.name} {package.oldest} or later"
        if not package.found:
            yield problem(f"{package.name} is not installed", f"pip install '{wanted}'")
        elif version(package.found) < version(package.oldest):
            text = f"{package.name} {package.found} is too old: {wanted} is needed"
            yield problem(text, f"pip install --upgrade {package.name}")
    if not host.packages:
        yield note("nsqcy is not installed as a package, so its needs are not known")


def version(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def open_files(host: Host) -> Iterator[Finding]:
    advice = "raise LimitNOFILE= of the service, or ulimit -Hn where it is started"
    hard = host.files_hard
    if hard < MIN_FILES:
        yield problem(f"{hard} open files are allowed, and each connection is one", advice)
    elif hard < FEW:
        yield warning(f"{hard} open files are few: each connection is one", advice)
    else:
        yield ok(f"{hard} are allowed to what is started from here")
    for port in host.ports:
        process = port.process
        if process and process.max_files and process.files >= NEARLY * process.max_files:
            text = f"pid {process.pid} has {process.files} of {process.max_files} files open"
            yield problem(f"{text} ({process.command})", advice)
    if host.files_on_machine:
        used, maximum = host.files_on_machine
        if used >= NEARLY * maximum:
            text = f"{used} files are open on this machine, of {maximum}"
            yield warning(text, "sysctl fs.file-max says how many may be")


def clock(host: Host) -> Iterator[Finding]:
    found = host.clock
    if found.synchronised is False:
        text = "the clock is not synchronised, as the kernel knows it"
        yield warning(
            text, "run chrony, systemd-timesyncd or ntpd: deferred messages are due by it"
        )
    elif found.synchronised is None:
        yield note("whether the clock is synchronised cannot be seen here")
    if found.stepped is not None and abs(found.stepped) > STEP:
        way = "forward" if found.stepped > 0 else "back"
        text = f"the clock was set {way} by {abs(found.stepped):.0f} s since boot"
        yield note(text, "see that it is set before daemons start, and only slewed afterwards")


def memory(host: Host) -> Iterator[Finding]:
    found, wanted = host.memory, host.wanted
    free = f"{size(found.available)} are free to use, within all cgroups"
    if wanted.memory_bytes * wanted.workers > found.available:
        text = f"--memory-bytes of {wanted.workers} workers are more than the {free}"
        yield problem(
            text, "make --memory-bytes smaller, or let it be: half of what is free is taken"
        )
    elif found.available < MIN_MEMORY:
        text = f"{free}: messages go to disk and come back one by one"
        yield warning(text, "give the machine, or its cgroup, more memory")
    else:
        yield ok(free)
    if found.overcommit == STRICT and found.committed >= NEARLY * found.commit_limit:
        text = "vm.overcommit_memory is 2, and nearly all that may be promised is"
        yield warning(text, "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio")


def cpus(host: Host) -> Iterator[Finding]:
    if host.wanted.workers > host.cpus:
        text = f"{host.wanted.workers} workers for {host.cpus} usable CPUs"
        yield warning(text, "set --workers to no more than the CPUs that cgroup and affinity allow")
    else:
        yield ok(f"{host.cpus} can be used, and there are {host.wanted.workers} workers")


def kernel(host: Host) -> Iterator[Finding]:
    for call in host.missing_calls:
        text = f"{call} is not to be had from this kernel, and workers need it"
        yield problem(text, "allow it in the profile of seccomp, or use Linux 4.5 or later")
    if host.somaxconn is not None and host.somaxconn < MIN_BACKLOG:
        text = f"net.core.somaxconn is {host.somaxconn}: a burst of connections is turned away"
        yield warning(text, "sysctl -w net.core.somaxconn=4096, and in /etc/sysctl.d")


def ports(host: Host) -> Iterator[Finding]:
    for port in host.ports:
        yield _port(port, host.wanted.daemon)


def _port(port: Port, daemon: str) -> Finding:
    where = f"--{port.flag} {port.address}"
    if port.error:
        return problem(f"{where}: {port.error}", f"give {daemon} an address that this machine has")
    if not port.busy:
        return ok(f"{where} is free")
    process = port.process
    if process is None:
        text = f"{where} is taken, by whom only root may see"
        return note(text, f"if that is not {daemon}: ss -ltnp as root, and one of them has to move")
    who = f"pid {process.pid} ({process.command})"
    if daemon in process.command:
        return ok(f"{where}: {who} listens")
    return problem(
        f"{where} is taken by {who}", f"stop that, or give {daemon} another --{port.flag}"
    )


CHECKS = (
    Check(
        "config",
        "the file of `--config`: unknown keys, bad values, what has no effect",
        "",
        config,
        lambda host: host.config,
    ),
    Check(
        "libraries",
        "python and the packages that nsqcy needs: missing, too old, not built for this python",
        "python and packages are as needed",
        libraries,
    ),
    Check(
        "open-files",
        f"the hard limit of open files (fewer than {FEW:,}), how many of theirs running daemons use"
        f" ({NEARLY:.0%}), those of the whole machine",
        "",
        open_files,
    ),
    Check(
        "clock",
        "whether the kernel calls the clock synchronised; whether it was set by more than"
        f" {STEP:.0f} s since boot",
        "it is synchronised",
        clock,
    ),
    Check(
        "memory",
        "what is free within all cgroups, against `--memory-bytes` of all workers; what"
        " vm.overcommit_memory leaves",
        "",
        memory,
    ),
    Check("cpus", "workers beyond the CPUs that affinity and cgroup allow", "", cpus),
    Check(
        "kernel",
        f"net.core.somaxconn (less than {MIN_BACKLOG:,}); calls that workers need (memfd_create,"
        " eventfd)",
        "it has what workers need",
        kernel,
    ),
    Check(
        "ports",
        "each address of the options: free, or who listens; not of this machine; a left-over file",
        "the options have no address",
        ports,
    ),
)
