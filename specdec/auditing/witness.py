"""Watch the scores that a text was decided by, without changing it."""

import torch


class Witness:
    """A logits processor that keeps what it is shown: scores by the length of the text before them, on the CPU.

    It doesn't call itself path-pure: so it is shown positions that the text takes, each once, and no others.
    """

    def __init__(self) -> None:
        self.scores: dict[int, torch.Tensor] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.scores[input_ids.shape[1]] = scores[0].to("cpu", torch.float32, copy=True)
        return scores
