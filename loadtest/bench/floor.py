"""The floor for nsqd: a server that makes the same system calls but contains no broker.

It receives nsqd's load (floor.c defines which part it reads), so that a cost can be given as a
multiple of the kernel's own cost on the same machine.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtest.bench.daemon import Daemon, NotOffered

SOURCE = Path(__file__).with_name("floor.c")


@contextlib.contextmanager
def running(size: int, certificate: tuple[Path, Path] | None = None) -> Iterator[Daemon]:
    """Compile and run the floor; its messages have bodies of `size` bytes.

    certificate: the PEM files of a certificate and its key, for a floor with TLS. Raises NotOffered
    if OpenSSL's headers are not installed.
    """
    with tempfile.TemporaryDirectory(prefix="nsqcy-floor-") as folder:
        program = Path(folder) / "floor"
        compiler = os.environ.get("CC", "cc").split()
        command = [*compiler, "-O2", "-Wall", "-o", program, SOURCE]
        if certificate is None:
            subprocess.run(command, check=True)
        elif subprocess.run([*command, "-DWITH_TLS", "-lssl", "-lcrypto"]).returncode:
            raise NotOffered("the floor over TLS needs OpenSSL's headers: apt install libssl-dev")
        process = subprocess.Popen(
            [program, str(size), *(certificate or ())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield Daemon(("127.0.0.1", port), None, process.pid)
        finally:
            process.stdin.close()
            process.wait()
            process.stdout.close()
