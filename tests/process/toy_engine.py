"""Engine that echoes bytes, and misbehaves when a client or a test requests it.

On a connection, a line is answered by `worker peer local kind: line`. A line that begins with `!`
is a command: `!crash`, `!hang`, `!ask N TEXT` (request an echo from worker N's engine),
`!create TOPIC`, `!channel TOPIC CHANNEL`, `!delete TOPIC`, `!pause TOPIC`, `!place TOPIC`,
`!replace WORKER` (in place), `!events`, `!workers`, `!level`, `!sockopts`, `!environ`,
`!remember WORD`, `!recall`. `stop` saves a file `saved.N` in the data path.

The engine keeps a word in the memory that outlives it. `load` restores the word, as a block of the
topic "word", and then reads an empty topic. While a file exists that the setting `dies_reading`,
`dies_loading` or `dies_once` names, it dies while it reads a topic, or before; `dies_once` removes
the file. `restore_takes`: number of heartbeats.

The environment can end a process at a step of a hand-over, let it hang there, or end its master:
TOY_ENDS_AT, TOY_HANGS_AT and TOY_ORPHANED_AT name the step. This happens as long as the file exists
that TOY_IF names.
"""

import os
import pathlib
import signal
import socket
import time
from dataclasses import dataclass
from typing import ClassVar

import gevent

from nsqcy.nsqd import process_calls, upgrade_steps
from nsqcy.nsqd.process_messages import reports
from nsqcy.nsqd.process_messages.master_verbs import ChangeOption, MasterVerb
from nsqcy.nsqd.reading_marks import WHOLE_TOPIC, ReadingMarks
from nsqcy.nsqd.worker.succession import NotHandedOver, Parcel
from nsqcy.process.control import Answer

WORD = 64  # maximum length of the remembered word


class ToyCall(process_calls.Call):
    timeout: ClassVar[float] = 5.0


@dataclass(frozen=True)
class Echo(ToyCall):
    returns = "answer"
    text: str
    blob: bytes
    fds: tuple[int, ...]

    def run(self, engine):
        words = b""
        for fd in self.fds:
            with os.fdopen(fd, "rb") as file:
                words += file.read()
        return Answer(f"{engine.boot.worker} {self.text}", self.blob + words)


@dataclass(frozen=True)
class Fail(ToyCall):
    def run(self, engine):
        raise ValueError("told to fail")


@dataclass(frozen=True)
class DescribeWorkers(MasterVerb):
    """Request for the workers' states; toy_nsqd serves it."""

    timeout: ClassVar[float] = 5.0


@dataclass(frozen=True)
class ReplaceWorker(MasterVerb):
    """Request to replace a worker in place; toy_nsqd serves it."""

    timeout: ClassVar[float] = 5.0
    worker: int


class ToyEngine:
    def __init__(self, boot):
        self.boot = boot
        self.toy = boot.context.get("toy", {})
        self.clients = {}
        self.beats = 0
        self.resting = False
        self.events = [f"boot generation {boot.generation}"]
        for each in boot.parcels or ():
            if each.kind == "events":
                self.events = [*each.state["events"], *self.events]
        if self.toy.get("cannot_boot") == boot.worker:
            raise RuntimeError("told not to boot")

    def load(self, topics, table, peers):
        if self.toy.get("cannot_load") == self.boot.worker:
            raise RuntimeError("told not to load")
        self._wait_for("load_waits_for")
        self._restore()
        names = sorted(topic["name"] for topic in topics)
        self.events.append(f"load {','.join(names)} peers {sorted(peers.items())}")
        for each in self.boot.parcels or ():
            if each.kind == "client":
                self._serve(each.fds[0], each.state["about"])

    def _restore(self):
        memory = self.boot.memory
        if memory is None:
            return
        if memory.left_fd >= 0:
            self.events += [f"left out {name} {block}" for name, block in memory.leave_out]
            if self._is_set("dies_once"):
                os.unlink(self.toy["dies_once"])
                os.abort()
            if self._is_set("dies_loading"):
                os.abort()
            beats = self.beats + self.toy.get("restore_takes", 0)
            while self.beats < beats:
                gevent.sleep(0.01)
            marks = ReadingMarks(memory.marks_fd)
            for topic in ("word", "nothing"):
                if (topic, WHOLE_TOPIC) not in memory.leave_out:
                    marks.begin(topic.encode(), 1 + len(memory.leave_out))
                    if self._is_set("dies_reading"):
                        os.abort()
                    if topic == "word":
                        self._remember(os.pread(memory.left_fd, WORD, 0))
                    marks.end()
        self.boot.master.notify(reports.Restored(self.boot.worker))

    def _remember(self, word):
        os.pwrite(self.boot.memory.state_fd, word, 0)

    def _recall(self):
        memory = self.boot.memory
        return os.pread(memory.state_fd, WORD, 0).rstrip(b"\0").decode() if memory else ""

    def _is_set(self, setting):
        return os.path.exists(self.toy.get(setting, ""))

    def adopt(self, fd, kind, peer, local):
        self._serve(fd, f"{peer} {local} {kind}")

    def _serve(self, fd, about):
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        watcher = gevent.get_hub().loop.io(fd, 1)
        self.clients[fd] = (sock, watcher, about)
        watcher.start(self._readable, fd)

    rest_limit = 1.0

    def begin_rest(self):
        if self._is_set("refuses_hand_over"):
            raise NotHandedOver("told not to")
        for _, watcher, _ in self.clients.values():
            watcher.stop()

    def is_at_rest(self):
        return not self._is_set("works_while")

    def end_rest(self):
        for fd, (_, watcher, _) in self.clients.items():
            watcher.start(self._readable, fd)

    def pack(self):
        yield Parcel("events", {"events": self.events})
        for fd, (_, _, about) in self.clients.items():
            yield Parcel("client", {"about": about}, b"", (fd,))

    def connections(self):
        self.beats += 1
        return len(self.clients)

    def placed(self, topic, worker):
        self.events.append(f"placed {topic} {worker}")

    def peer_down(self, worker):
        self.events.append(f"peer_down {worker}")

    def peer_up(self, worker, generation):
        self.events.append(f"peer_up {worker} {generation}")

    def option_changed(self, name, value):
        self.events.append(f"{name} {value}")

    def call(self, request):
        return process_calls.serve(request, (ToyCall, self))

    def stop(self):
        for fd in list(self.clients):
            self._drop(fd)
        gevent.sleep(self.toy.get("stop_takes", 0))
        self._wait_for("stop_waits_for")
        path = pathlib.Path(self.toy["data_path"]) / f"saved.{self.boot.worker}"
        path.write_text(self._recall() or "all of it")
        return True

    def _wait_for(self, setting):
        """Wait until the file named by a setting exists."""
        while setting in self.toy and not os.path.exists(self.toy[setting]):
            gevent.sleep(0.01)

    def _drop(self, fd):
        sock, watcher, _ = self.clients.pop(fd)
        watcher.stop()
        watcher.close()
        sock.close()

    def _readable(self, fd):
        sock, _, about = self.clients[fd]
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
        elif data.startswith(b"!"):
            gevent.spawn(self._command, sock, data.decode().split())
        else:
            sock.send(f"{self.boot.worker} {about}: ".encode() + data)

    def _command(self, sock, words):
        master = self.boot.master
        match words:
            case ["!crash"]:
                os.abort()
            case ["!hang"]:
                sock.send(b"hanging\n")
                while True:
                    time.sleep(1)
            case ["!ask", worker, text]:
                fd = os.memfd_create("words")
                os.pwrite(fd, b"words", 0)
                blob = b"x" * 200_000
                answer = master.ask(int(worker), Echo(text, blob, (fd,)))
                reply = f"{answer.value} {len(answer.blob)}"
            case ["!fail", worker]:
                try:
                    master.ask(int(worker), Fail())
                    reply = "no error"
                except Exception as error:
                    reply = f"{type(error).__name__} {error}"
            case ["!create", topic]:
                reply = master.notify(reports.TopicCreated(self.boot.worker, topic, False))
            case ["!channel", topic, channel]:
                reply = master.notify(reports.ChannelCreated(topic, channel))
            case ["!delete", topic]:
                master.notify(reports.TopicDeleted(topic))
                reply = master.call(reports.SaveNames())
            case ["!pause", topic]:
                master.notify(reports.TopicPaused(topic, True))
                reply = master.call(reports.SaveNames())
            case ["!place", topic]:
                reply = master.call(reports.Place(topic))
            case ["!events"]:
                reply = ";".join(self.events)
            case ["!replace", worker]:
                reply = master.notify(ReplaceWorker(int(worker)))
            case ["!workers"]:
                reply = repr(master.call(DescribeWorkers()))
            case ["!remember", word]:
                reply = self._remember(word.encode())
            case ["!recall"]:
                reply = self._recall() or "nothing"
            case ["!sockopts"]:
                options = [
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                ]
                reply = " ".join(map(str, options))
            case ["!environ"]:
                reply = " ".join(sorted(os.environ))
            case ["!level", level]:
                reply = master.call(ChangeOption("log_level", int(level)))
        sock.setblocking(True)
        sock.sendall(f"{reply}\n".encode())


def reached(step):
    if os.path.exists(os.environ.get("TOY_IF", "")):
        if step == os.environ.get("TOY_ENDS_AT"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == os.environ.get("TOY_ORPHANED_AT"):
            master = os.getppid()
            os.kill(master, signal.SIGKILL)
            while os.getppid() == master:
                time.sleep(0.001)
        if step == os.environ.get("TOY_HANGS_AT"):
            time.sleep(1000)


upgrade_steps.reached = reached
