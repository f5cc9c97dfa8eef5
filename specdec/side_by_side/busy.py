"""Do other programs use the processor? Not every contender suffers alike from that, so ratios change as well."""

import os

LET_PASS = 1.0  # of load by others: a desktop at rest has some


def load_by_others() -> float:
    """The processes of others that wanted a processor in the last minute, on average; 0 where that isn't known."""
    import torch

    return os.getloadavg()[0] - torch.get_num_threads() if hasattr(os, "getloadavg") else 0.0
