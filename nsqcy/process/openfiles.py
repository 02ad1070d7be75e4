"""How many files this process may have open. Owns nothing."""

import resource


def raise_limit() -> int:
    """Allow as many open files as we may; gives the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
