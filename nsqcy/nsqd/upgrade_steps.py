"""The steps of an upgrade in place at which a process may be killed, by name.

Owns the names, and the function that every step calls. Knows nothing about what a step does.

    trying             the trial has started, and has read nothing
    executing          the master rests, and executes the next version next
    executed           the next version has started, and has restored nothing
    adopted            it has restored everything, and cannot return to the previous version
    replacing N        it replaces worker N next
    booting            a successor starts
    waiting            it has imported its modules
    resting            the worker is about to read nothing more from its clients
    at rest            it has answered what was outstanding
    sending, sent      it has sent the first part, or everything
    receiving          the successor has the first part
    received           it has everything
    committing         the worker makes the successor the worker next
    handed over        it has done so
    taken over         the successor is the worker, and has restored nothing
"""


def reached(step: str) -> None:
    """Note that this process has reached a step. Tests replace this function, so that something
    happens at a step."""
