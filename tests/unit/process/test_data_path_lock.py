"""The data-path lock, with real processes."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from nsqcy.process import data_path_lock
from nsqcy.process.data_path_lock import DataPathError, lock_data_path

# Locks argv[1], starts a child that inherits the lock, prints "locked", and waits for input or a
# kill.
MASTER = """
import subprocess, sys
from nsqcy.process.data_path_lock import lock_data_path
lock = lock_data_path(sys.argv[1])
worker = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                          stdin=int(sys.argv[2]), pass_fds=[lock.fd])
print("locked", flush=True)
sys.stdin.read()
"""


def never(seconds):
    raise AssertionError("waited for a live master")


class Master:
    """A master with one worker, which runs until `end_worker`."""

    def __init__(self, path):
        worker_in, self.worker_out = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", MASTER, str(path), str(worker_in)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[worker_in],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        os.close(worker_in)
        assert self.process.stdout.readline() == b"locked\n"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end_worker(self):
        if self.worker_out >= 0:
            os.close(self.worker_out)
            self.worker_out = -1

    def end(self):
        self.end_worker()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def master(tmp_path):
    master = Master(tmp_path)
    yield master
    master.end()


def busy(path):
    return (
        f"failed to lock data-path: cannot flock directory {path} - resource temporarily "
        "unavailable (possibly in use by another instance of nsqd)"
    )


@pytest.mark.case("C326")
def test_a_living_master_is_not_waited_for(tmp_path, master):
    with pytest.raises(DataPathError) as caught:
        lock_data_path(str(tmp_path), sleep=never)
    assert str(caught.value) == busy(tmp_path)


def test_listing_the_directory_does_not_drop_the_mark(tmp_path):
    with lock_data_path(str(tmp_path)):
        os.listdir(tmp_path)
        os.close(os.open(tmp_path, os.O_RDONLY))
        with pytest.raises(DataPathError):
            lock_data_path(str(tmp_path), sleep=never)


def test_orphans_are_waited_for(tmp_path, master):
    master.kill()
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            master.end_worker()
        os.sched_yield()

    with lock_data_path(str(tmp_path), orphans_wait=60, sleep=sleep) as lock:
        assert len(naps) >= 3 and os.get_inheritable(lock.fd)


def test_orphans_are_not_waited_for_for_ever(tmp_path, master):
    master.kill()
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    with pytest.raises(DataPathError) as caught:
        lock_data_path(str(tmp_path), sleep=sleep, clock=lambda: now[0])
    assert str(caught.value) == busy(tmp_path)
    assert 105 <= now[0] < 105.1


def test_a_master_that_was_between_its_two_locks(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    mark = os.open(tmp_path, os.O_RDONLY)

    def sleep(seconds):
        from nsqcy.process.data_path_lock import _mark_master

        _mark_master(mark)

    with pytest.raises(DataPathError):
        lock_data_path(str(tmp_path), orphans_wait=60, sleep=sleep)
    os.close(fd)
    os.close(mark)


def test_a_worker_keeps_the_path_after_a_clean_release(tmp_path):
    lock = lock_data_path(str(tmp_path))
    worker = os.dup(lock.fd)
    lock.release()
    lock.release()
    with pytest.raises(DataPathError):
        lock_data_path(str(tmp_path), orphans_wait=0)
    os.close(worker)
    lock_data_path(str(tmp_path), orphans_wait=0).release()


@pytest.mark.case("C327")
def test_a_missing_data_path(tmp_path):
    with pytest.raises(DataPathError) as caught:
        lock_data_path(f"{tmp_path}/none")
    assert str(caught.value) == (
        f"failed to lock data-path: open {tmp_path}/none: no such file or directory;"
        " create the directory, or change --data-path"
    )


def test_a_file_is_not_a_data_path(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(DataPathError, match=r"open .*/f: not a directory"):
        lock_data_path(f"{tmp_path}/f")


def test_the_empty_path_is_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with lock_data_path("") as lock:
        assert lock.path == str(tmp_path)
        with pytest.raises(DataPathError, match=f"cannot flock directory {tmp_path} - "):
            lock_data_path("", sleep=never)


def test_a_lock_that_cannot_work_is_not_waited_for(tmp_path, monkeypatch):
    def flock(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(DataPathError, match="- no locks available "):
        lock_data_path(str(tmp_path), sleep=never)


def test_the_next_program_keeps_both_locks(tmp_path):
    lock = data_path_lock.lock_data_path(str(tmp_path))
    kept = []
    dumped = lock.dump(lambda fd: kept.append(fd) or fd)
    assert len(kept) == 2
    successor = data_path_lock.DataPathLock.restore(json.loads(json.dumps(dumped)))
    with pytest.raises(data_path_lock.DataPathError):
        data_path_lock.lock_data_path(str(tmp_path), orphans_wait=0.0)
    successor.release()
    data_path_lock.lock_data_path(str(tmp_path), orphans_wait=0.0).release()


def test_a_process_drops_the_lock_that_it_has_inherited(tmp_path):
    lock = lock_data_path(str(tmp_path))
    dumped = lock.dump(lambda fd: fd)
    data_path_lock.DataPathLock.drop_inherited(dumped)
    with pytest.raises(OSError):
        os.fstat(lock.fd)
    data_path_lock.DataPathLock.drop_inherited(dumped)  # it was not inherited
    other = os.open("/", os.O_RDONLY)
    data_path_lock.DataPathLock.drop_inherited(dumped | {"fd": other})
    os.close(other)
    os.close(lock._master_fd)


def test_another_directory_behind_the_same_path(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    path = tmp_path / "link"
    path.symlink_to("here")
    with data_path_lock.lock_data_path(str(path)) as lock:
        dumped = lock.dump(lambda fd: fd)
    is_of = data_path_lock.DataPathLock.is_of
    assert is_of(dumped, str(path)) and is_of(dumped, str(tmp_path / "here"))
    path.unlink()
    assert not is_of(dumped, str(path))
    path.symlink_to("there")
    assert not is_of(dumped, str(path))
