"""Errors of allocations."""

_SIGNS = ("can't allocate memory", "cannot allocate memory", "bad_alloc", "bad allocation", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the errors by which Python, torch and C++ libraries report that memory can't be allocated."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _SIGNS)
