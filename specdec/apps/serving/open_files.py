"""The limit of open files, which bounds a server's connections."""

import os
from contextlib import suppress

from specdec.errors import RequestError

_WANTED = 1 << 16  # no more, because some libraries iterate over all possible descriptors
_SPARE = 16  # for files opened while the server runs, such as those of strategies
_LEAST = 8  # fewest connections of a usable server


def raise_limit() -> None:
    """Raise this process's soft limit of open files to the hard limit, or to 65,536 if that is lower."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has another limit, which isn't reported
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_that_fit(most: int) -> int:
    """Return the number of connections that may be open, at most ``most``; fewer if the limit of open files is low.

    Raises:
        RequestError: if the limit of open files is too low.
    """
    try:
        import resource
    except ImportError:
        return most
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    room = limit - _num_open() - _SPARE
    if room < min(most, _LEAST):
        raise RequestError(
            f"the limit of open files is {limit}, of which {limit - room} are needed for other files: raise "
            f"it to {limit - room + _LEAST} at least (ulimit -n, or LimitNOFILE of systemd's unit)"
        )
    return min(most, room)


def _num_open() -> int:
    with suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return 32  # the system doesn't list them
