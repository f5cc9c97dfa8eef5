"""The limit of open files, which bounds a server's connections."""

import os
from contextlib import suppress

from specdec.errors import RequestError

_WANTED = 1 << 16  # no more: some libraries go through all descriptors that there may be
_SPARE = 16  # for what is opened while the server runs, such as files of strategies
_LEAST = 8  # connections without which it is no server


def raise_limit() -> None:
    """Raise this process's soft limit of open files as far as the hard one lets it, or to 65,536."""
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
    """The connections that may be open at a time, at most ``most``: fewer where the limit of open files is low.

    Raises:
        RequestError: for a limit that leaves next to none.
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
            f"the limit of open files is {limit}, of which {limit - room} are needed for more than connections: raise "
            f"it to {limit - room + _LEAST} at least (ulimit -n, or LimitNOFILE of systemd's unit)"
        )
    return min(most, room)


def _num_open() -> int:
    with suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return 32  # where the system doesn't list them
