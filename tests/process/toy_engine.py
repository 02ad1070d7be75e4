"""An engine that echoes bytes, and does odd things when a client or a test asks for them.

On a connection: a line is answered by `worker peer local kind: line`; a line that begins with `!`
is a command: `!crash`, `!hang`, `!ask N TEXT` (ask worker N's engine to echo), `!create TOPIC`,
`!channel TOPIC CHANNEL`, `!delete TOPIC`, `!pause TOPIC`, `!place TOPIC`, `!events`, `!workers`,
`!level`, `!sockopts`. What `stop` is to save is a file `saved.N` in the data path.
"""

import os
import pathlib
import socket
import time

import gevent

from nsqcy.nsqd.master.verbs import ChangeOption
from nsqcy.process.control import Answer


class ToyEngine:
    def __init__(self, boot):
        self.boot = boot
        self.toy = boot.context.get("toy", {})
        self.clients = {}
        self.events = [f"boot generation {boot.generation}"]
        if self.toy.get("cannot_boot") == boot.worker:
            raise RuntimeError("told not to boot")

    def load(self, topics, table, peers):
        if self.toy.get("cannot_load") == self.boot.worker:
            raise RuntimeError("told not to load")
        self._wait_for("load_waits_for")
        names = sorted(topic["name"] for topic in topics)
        self.events.append(f"load {','.join(names)} peers {sorted(peers.items())}")

    def adopt(self, fd, kind, peer, local):
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        watcher = gevent.get_hub().loop.io(fd, 1)
        self.clients[fd] = (sock, watcher, f"{peer} {local} {kind}")
        watcher.start(self._readable, fd)

    def connections(self):
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
        blob = request.blob
        for fd in request.fds:
            with os.fdopen(fd, "rb") as file:
                blob += file.read()
        if request.method == "fail":
            raise ValueError("told to fail")
        return Answer(f"{self.boot.worker} {request.args.get('text', '')}", blob)

    def stop(self):
        for fd in list(self.clients):
            self._drop(fd)
        gevent.sleep(self.toy.get("stop_takes", 0))
        self._wait_for("stop_waits_for")
        path = pathlib.Path(self.toy["data_path"]) / f"saved.{self.boot.worker}"
        path.write_text("all of it")

    def _wait_for(self, setting):
        """Until the file that a setting names is there."""
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
                answer = master.ask(int(worker), "echo", 5, text=text, blob=blob, fds=[fd])
                reply = f"{answer.value} {len(answer.blob)}"
            case ["!fail", worker]:
                try:
                    master.ask(int(worker), "fail", 5)
                    reply = "no error"
                except Exception as error:
                    reply = f"{type(error).__name__} {error}"
            case ["!create", topic]:
                reply = master.topic_created(topic)
            case ["!channel", topic, channel]:
                reply = master.channel_created(topic, channel)
            case ["!delete", topic]:
                reply = master.topic_deleted(topic)
            case ["!pause", topic]:
                reply = master.topic_paused(topic, True)
            case ["!place", topic]:
                reply = master.place(topic)
            case ["!events"]:
                reply = ";".join(self.events)
            case ["!workers"]:
                reply = repr(master.ask(None, "workers", 5).value)
            case ["!sockopts"]:
                options = [
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                ]
                reply = " ".join(map(str, options))
            case ["!level", level]:
                reply = ChangeOption("log_level", int(level)).send(master.ask, None)
        sock.setblocking(True)
        sock.sendall(f"{reply}\n".encode())
