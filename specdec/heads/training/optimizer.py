"""AdamW with clipped gradients and a schedule of its learning rates, whose state a resumed run goes on from."""

from collections.abc import Mapping, Sequence

import torch

from specdec.heads.training.settings import TrainingSettings

_PREFIX = "optimizer."  # of its tensors' names


class ScheduledAdamW:
    """Updates of some parameters.

    Args:
        groups: parameters with their peak learning rate.
        schedule: its ``betas``, ``clip``, ``warm_up`` and ``flat_share`` are used.
    """

    def __init__(
        self, groups: Sequence[tuple[Sequence[torch.nn.Parameter], float]], schedule: TrainingSettings
    ) -> None:
        self._schedule = schedule
        self._parameters = [parameter for parameters, _ in groups for parameter in parameters]
        named = [{"params": [*parameters], "lr": rate, "peak": rate} for parameters, rate in groups]
        self._adamw = torch.optim.AdamW(named, betas=schedule.betas, weight_decay=0.0, fused=True)

    def step(self, loss: torch.Tensor, update: int, done: float) -> None:
        """Make one update.

        Args:
            loss: a scalar, with its graph.
            update: number of updates before.
            done: share of the training before it.
        """
        self._adamw.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, self._schedule.clip)
        for group in self._adamw.param_groups:
            group["lr"] = group["peak"] * self._factor(update, done)
        self._adamw.step()

    def _factor(self, update: int, done: float) -> float:
        """Return the factor on the rates: a warm-up, a constant part, a linear fall to zero."""
        flat = self._schedule.flat_share
        fall = 1.0 if done < flat else (1 - done) / (1 - flat)
        return min(1.0, (update + 1) / self._schedule.warm_up) * fall

    def state(self) -> dict[str, torch.Tensor]:
        """Return what ``restore`` takes: tensors whose names begin with ``optimizer.``, which later updates change."""
        moments = self._adamw.state_dict()["state"]
        return {f"{_PREFIX}{index}.{name}": each for index, held in moments.items() for name, each in held.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from a ``state``, on any device, for the same parameters; other tensors are ignored."""
        moments = dict[int, dict[str, torch.Tensor]]()
        for name, tensor in tensors.items():
            if name.startswith(_PREFIX):
                index, _, which = name.removeprefix(_PREFIX).partition(".")
                moments.setdefault(int(index), {})[which] = tensor
        self._adamw.load_state_dict({**self._adamw.state_dict(), "state": moments})
