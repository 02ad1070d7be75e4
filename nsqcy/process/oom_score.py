"""Order in which the kernel kills this nsqd's processes if memory runs out: workers before the
master, which holds the memory of their messages.

Owns the value in /proc. Independent of the process's tasks.
"""

PATH = "/proc/self/oom_score_adj"
ABOVE = 100  # thousandths of the machine's memory
MAX_SCORE = 1000  # the kernel's maximum


def raise_above_parent(path: str = PATH) -> None:
    """Raise this process's value above its parent's, which it has inherited. Call it once. If the
    kernel does not permit this, the value stays unchanged."""
    try:
        with open(path, encoding="ascii") as file:
            inherited = int(file.read())
        with open(path, "w", encoding="ascii") as file:
            file.write(str(min(inherited + ABOVE, MAX_SCORE)))
    except (OSError, ValueError):
        pass
