"""Starts nsqcy's programs in forks of a process that has imported their modules.

Most of the CPU time of a short-lived daemon is spent on imports. After `install`, a process that
tests start through `subprocess` as `python -m nsqcy...` is a fork of a server that belongs to the
test process. Everything else is as after `exec`: the process is a child of the test process and has
the arguments, environment, directory, descriptors, limits, process group and signal mask
that `Popen` requests. After `ip netns exec NAME`, it is also in that network namespace.

A command is executed as usual if the server cannot do it in the same way: other options of Python,
variables that Python or libraries read when they start. Tests marked `real_start` execute all
commands, and so do all tests if NSQCY_REAL_START is set.

`nsqcy up` starts daemons itself. It gets a server of its own, a child that is a fork of the first
server and exits with it. `prepared` starts the workers of a framework in the same way, from a
server that has imported the framework.

    python fork_server.py FD ROOM MODULE...
        the server: requests come from this socket; ROOM is replaced by the command line that `ps`
        shows. It imports these modules; without any, those of nsqcy's programs
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

# Imported by the server: the programs, and the modules that they import later.
PROGRAMS = (
    "nsqcy.__main__",
    "nsqcy.cli.demo",
    "nsqcy.nsqadmin.main",
    "nsqcy.nsqd.main",
    "nsqcy.nsqlookupd.main",
    "nsqcy.tools.nsq_stat",
    "nsqcy.tools.nsq_tail",
    "nsqcy.tools.nsq_to_file",
    "nsqcy.tools.nsq_to_http",
    "nsqcy.tools.nsq_to_nsq",
    "nsqcy.tools.to_nsq",
)
LATER = (
    "encodings.ascii",
    "encodings.idna",
    "encodings.unicode_escape",
    "nsqcy.cli.copies.main",
    "nsqcy.cli.peek",
    "nsqcy.cli.publish",
    "nsqcy.cli.subscribe",
    "nsqcy.cli.topics",
    "nsqcy.cli.up",
    "nsqcy.client",
    "nsqcy.doctor.main",
    "nsqcy.nsqadmin.app",
    "nsqcy.nsqadmin.auth.logins",
    "nsqcy.nsqd.data.command",
    "nsqcy.nsqd.master.live_options",
    "nsqcy.nsqd.master.master",
    "nsqcy.nsqd.worker.engine",
    "nsqcy.nsqd.worker.main",
    "nsqcy.nsqd.tls",
    "nsqcy.nsqlookupd.daemon",
    "nsqcy.process.children",
    "nsqcy.tools.printer",
    "nsqcy.users.credentials",
)
# The tests' own programs: the server does not import them, but imports most of the modules that
# they use.
OTHERS = ("support.memory_http_server",)
# Variables that are read while Python starts or modules are imported.
EARLY = ("COVERAGE", "GEVENT", "LANG", "LC_", "LD_", "MALLOC", "OPENSSL", "PROMETHEUS", "PYTHON")
EARLY += ("SSL_", "TQDM", "TZ")
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
MOST_FDS = 200
ROOM = 8192
EXECUTING = subprocess.Popen
HIGH = 1000  # above all initial descriptors of processes


# -- in the test process


class Popen(subprocess.Popen[Any]):
    """A process that is, if possible, a fork of the server."""

    server: "Server | None" = None
    prepared: ClassVar[dict[Any, "Server"]] = {}

    def _execute_child(self, *args: Any) -> None:
        request = None if self.server is None else _request(*args)
        if request is None or self.server is None or not self.server.suits(request):
            super()._execute_child(*args)  # type: ignore[misc]
            return
        self.pid = self.server.fork(request)
        self._child_created = True
        self._close_pipe_fds(*args[10:16])  # type: ignore[attr-defined]


def install(env: dict[str, str]) -> None:
    """Make `subprocess` use a fork server, which starts in this environment."""
    if "NSQCY_REAL_START" not in os.environ:
        Popen.server = Server(env)
        subprocess.Popen = Popen  # type: ignore[misc]


def uninstall() -> None:
    subprocess.Popen = EXECUTING  # type: ignore[misc]
    for server in (Popen.server, *Popen.prepared.values()):
        if server is not None:
            server.close()


@contextlib.contextmanager
def real_starts() -> Iterator[None]:
    """Disable the fork server in this block: all commands are executed."""
    kept, Popen.server = Popen.server, None
    try:
        yield
    finally:
        Popen.server = kept


@contextlib.contextmanager
def prepared(env: dict[str, str], modules: Sequence[str]) -> Iterator[None]:
    """In this block, start all programs with `python -m` and `python -c` as forks of a server that
    has imported these modules, and that later blocks share."""
    kept = Popen.server
    if kept is None or not modules:  # all programs are executed
        yield
        return
    key = (*modules, *sorted(_early(env).items()))
    Popen.server = Popen.prepared.setdefault(key, Server(env, modules=modules))
    try:
        yield
    finally:
        Popen.server = kept


def _request(
    args: Any,
    executable: Any,
    preexec_fn: Any,
    close_fds: bool,
    pass_fds: Sequence[int],
    cwd: Any,
    env: Any,
    startupinfo: Any,
    creationflags: int,
    shell: bool,
    p2cread: int,
    p2cwrite: int,
    c2pread: int,
    c2pwrite: int,
    errread: int,
    errwrite: int,
    restore_signals: bool,
    gid: Any,
    gids: Any,
    uid: Any,
    umask: int,
    start_new_session: bool,
    process_group: int,
) -> dict[str, Any] | None:
    """Return the server's arguments; None if the command is not for the server. The parameters are
    those of `Popen._execute_child`."""
    unusual = (executable, preexec_fn, gid, gids, uid)
    if shell or not close_fds or umask >= 0 or any(each is not None for each in unusual):
        return None
    if isinstance(args, str | bytes | os.PathLike):
        return None
    words = [os.fspath(word) for word in args]
    if not all(isinstance(word, str) for word in words):
        return None
    network = ""
    if words[:3] == ["ip", "netns", "exec"]:
        network, words = words[3], words[4:]
    if words[0] != sys.executable:
        return None
    is_safe = words[1:2] == ["-P"]
    option, module, *rest = [*words[2 if is_safe else 1 :], "", ""]
    if option not in ("-m", "-c"):
        return None
    where = os.fspath(cwd) if cwd is not None else os.getcwd()
    if not os.access(where, os.X_OK):
        return None
    pairs = (os.environ if env is None else env).items()
    standard = [own if fd < 0 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
    return {
        "option": option,
        "module": "nsqcy.__main__" if module == "nsqcy" else module,
        "args": rest[:-2],
        "words": words,
        "is_safe": is_safe,
        "network": network,
        "cwd": where,
        "env": {os.fsdecode(name): os.fsdecode(value) for name, value in pairs},
        "sources": [*standard, *pass_fds],
        "targets": [0, 1, 2, *pass_fds],
        "session": start_new_session,
        "group": process_group,
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "umask": _umask(),
        "limits": [resource.getrlimit(each) for each in LIMITS],
    }


def _umask() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def _early(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(EARLY)}


class Server:
    """This process's end of a server, which is started on first use if it is not given."""

    def __init__(
        self,
        env: dict[str, str],
        sock: socket.socket | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        self._env = env
        self._sock = sock
        self._modules = modules
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def suits(self, request: dict[str, Any]) -> bool:
        """Return whether Python would start in the same way as the server, and for the same
        parent."""
        is_ours = request["option"] == "-m" and request["module"] in (*PROGRAMS, *OTHERS)
        is_early = _early(self._env) == _early(request["env"])
        is_child = os.getpid() == self._owner
        is_known = is_ours or bool(self._modules)
        return is_known and is_early and is_child and len(request["sources"]) < MOST_FDS

    def fork(self, request: dict[str, Any]) -> int:
        """Return the pid of a new child of this process."""
        sources = request.pop("sources")
        memory = os.memfd_create("request", os.MFD_CLOEXEC)
        try:
            os.write(memory, json.dumps(request).encode())
            with self._lock, _adopting():
                sock = self._sock or self._start()
                socket.send_fds(sock, [b"."], [memory, *sources])
                pid = sock.recv(100)
        finally:
            os.close(memory)
        if not pid:
            raise ChildProcessError("the fork server has exited")
        return int(pid)

    def _start(self) -> socket.socket:
        self._sock, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno()), "-" * ROOM, *self._modules]
            passed = [theirs.fileno()]
            self._process = EXECUTING(
                words, env=self._env, stdin=subprocess.DEVNULL, pass_fds=passed
            )
        return self._sock

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()  # the server exits
            self._process.wait()


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of descendants whose parent exits."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


# -- in the server


def serve(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork on request. Returns in each child, with the child's command and descriptors."""
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1, MOST_FDS)
        if not data:
            os._exit(0)  # the test process has exited
        # A process between the two exits at once, so the test process becomes the parent. The child
        # waits for that: `orphaned` ends once no other process holds `held`.
        reading, writing = os.pipe()
        orphaned, held = os.pipe()
        if between := os.fork():
            os.waitpid(between, 0)
            sock.sendall(os.read(reading, 100))
            for fd in (reading, writing, orphaned, held, *fds):
                os.close(fd)
            continue
        if pid := os.fork():
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(held)
        os.read(orphaned, 1)
        with open(fds[0], "rb", closefd=False) as memory:
            memory.seek(0)
            return json.load(memory), fds[1:]


def serve_nested(fds: list[int]) -> tuple[dict[str, Any], list[int], socket.socket | None]:
    """Start a server for the programs that this process will start, and return its socket. In
    children of that server, return a command and descriptors, as `serve` does."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return {}, [], ours
    ours.close()
    for fd in fds:
        os.close(fd)
    request, fds = serve(theirs)
    theirs.close()
    return request, fds, None


def join(request: dict[str, Any]) -> None:
    """Join the session and the process group of an executed process."""
    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])


def become(request: dict[str, Any], fds: list[int], server: socket.socket | None) -> None:
    """Adopt the state of an executed process. `server`: the fork server for the programs that it
    starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each, limit in zip(LIMITS, request["limits"], strict=True):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(each, limit)
    if request["network"]:
        with open(f"/run/netns/{request['network']}") as file:
            assert ctypes.CDLL(None).setns(file.fileno(), CLONE_NEWNET) == 0
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    targets = request["targets"]
    if server is None:
        _place(fds, targets)
    else:
        own = max(targets) + 1
        _place([*fds, server.detach()], [*targets, own])
        os.set_inheritable(own, False)
        Popen.server = Server(request["env"], socket.socket(fileno=own))
        subprocess.Popen = Popen  # type: ignore[misc]
    sys.stdin = sys.__stdin__ = _stream(0, "rb", sys.stdin)
    sys.stdout = sys.__stdout__ = _stream(1, "wb", sys.stdout)
    sys.stderr = sys.__stderr__ = _stream(2, "wb", sys.stderr)
    sys.argv = [request["option"], *request["args"]]
    _show(request["words"])
    if not request["is_safe"]:
        sys.path.insert(0, request["cwd"] if request["option"] == "-m" else "")
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])


def _show(words: list[str]) -> None:
    """Write the command line where the kernel reads it."""
    with open("/proc/self/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = "".join(f"{word}\0" for word in words).encode(errors="surrogateescape")
    ctypes.memmove(start, line[: end - start].ljust(end - start, b"\0"), end - start)


def _place(fds: list[int], targets: list[int]) -> None:
    """Give descriptors these numbers, and close all others."""
    aside = [_above(fd) for fd in fds]
    for fd, target in zip(aside, targets, strict=True):
        os.dup2(fd, target, inheritable=True)
    first = 0
    for target in [*sorted(set(targets)), 1 << 20]:
        if first < target:
            os.closerange(first, target)
        first = target + 1


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)


def _stream(fd: int, mode: str, like: Any) -> io.TextIOWrapper:
    """Return Python's stream for a standard descriptor."""
    is_raw = fd > 0 and like.write_through  # PYTHONUNBUFFERED
    binary = open(fd, mode, buffering=0 if is_raw else -1, closefd=False)  # noqa: SIM115
    getattr(binary, "raw", binary).name = like.name
    by_line = not like.write_through and (fd == 2 or binary.isatty())
    text = io.TextIOWrapper(binary, like.encoding, like.errors, "\n", by_line, is_raw)
    text.mode = mode[0]  # type: ignore[misc]
    return text


def run(option: str, program: str) -> None:
    """Run a module as `python -m` does, or a text as `python -c` does.

    The exit performs all steps that a program may observe, but does not destroy the modules. That
    would take longer than everything else: after a fork, each touched page is copied.
    """
    status: list[int] = []

    def leave() -> None:
        with contextlib.suppress(OSError, ValueError):  # Python reports it
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            if status:
                os._exit(status[0])

    atexit.register(leave)  # runs last
    try:
        if option == "-m":
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]
        else:
            exec(compile(program, "<string>", "exec"), sys.modules["__main__"].__dict__)
        status.append(0)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        status.append((end.code or 0) & 0xFF)


def rehearse() -> None:
    """Fill the caches that every daemon fills when it starts: regular expressions, the type hints
    of the calls between processes, and compiled templates. They depend on the code alone."""
    from nsqcy.config import loader
    from nsqcy.nsqadmin.html import templates
    from nsqcy.nsqd import options, process_calls

    words = ["--workers=1", "--broadcast-address=localhost", "--msg-timeout=1s"]
    settings = loader.load(options.NSQD, words)
    options.derive(options.resolve(settings), {"tcp": 1, "http": 1})
    for kind in process_calls.Call.__subclasses__():
        for call in kind.kinds.values():
            process_calls._types(call)
    templates.environment()


def main() -> None:
    del sys.path[0]  # this directory
    # Signals to the process group are meant for the other processes. A child's signals stay pending
    # until it has the state of an executed process.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    given = sys.argv[3:]
    for name in given or (*PROGRAMS, *LATER):
        importlib.import_module(name)
    if not given:
        rehearse()
        for name in PROGRAMS:
            del sys.modules[name]  # each program becomes __main__
    gc.collect()
    gc.freeze()
    sock = socket.socket(fileno=int(sys.argv[1]))
    request, fds = serve(sock)
    join(request)
    fd, server = sock.detach(), None
    if (request["module"], request["args"][:1]) == ("nsqcy.__main__", ["up"]):
        nested, nested_fds, server = serve_nested([fd, *fds])
        if server is None:
            request, fds = nested, nested_fds
            join(request)
    become(request, fds, server)
    run(request["option"], request["module"])


if __name__ == "__main__":
    main()
