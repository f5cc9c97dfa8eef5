"""Load by other programs, which slows contenders unequally, so that ratios change as well."""

import os

LET_PASS = 1.0  # of load by others: a desktop at rest has some


def load_by_others() -> float:
    """The load average of the last minute minus torch's threads; 0 where the system has no load average."""
    import torch

    return os.getloadavg()[0] - torch.get_num_threads() if hasattr(os, "getloadavg") else 0.0
