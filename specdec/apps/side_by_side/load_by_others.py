"""The load by other programs, which slows contenders differently, so that ratios change as well."""

import os

TOLERATED_LOAD = 1.0  # an idle desktop has some


def load_by_others() -> float:
    """Return the load average of the last minute minus torch's threads; 0 if the system has no load average."""
    import torch

    return os.getloadavg()[0] - torch.get_num_threads() if hasattr(os, "getloadavg") else 0.0
