"""Execute a command that inherits sockets: `exec_with_sockets.py NAMES FD,FD,... COMMAND...`.

These are a service manager's last steps before it executes a service: the sockets become
descriptors 3, 4 and so on. LISTEN_PID is the pid of the receiver, which only the process itself can
know.
"""

import fcntl
import os
import sys

FIRST, HIGH = 3, 100


def main() -> None:
    names, numbers, *command = sys.argv[1:]
    aside = [fcntl.fcntl(int(number), fcntl.F_DUPFD, HIGH) for number in numbers.split(",")]
    for place, fd in enumerate(aside, FIRST):
        os.dup2(fd, place, inheritable=True)
    os.closerange(FIRST + len(aside), HIGH + len(aside))
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(aside))}
    if names:
        os.environ["LISTEN_FDNAMES"] = names
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
