"""Updates of parameters: learning rates by the schedule, clipped gradients, and a state from which they go on."""

import pytest
import torch

from specdec.heads.training.loop import ScheduledAdamW
from specdec.heads.training.settings import TrainingSettings

SETTINGS = TrainingSettings(warm_up=4, flat_share=0.5, clip=1.0)


def test_rates_rise_stay_and_fall() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2)]
    optimizer = ScheduledAdamW([(parameters[:1], 1.0), (parameters[1:], 0.1)], SETTINGS)
    moved = list[float]()
    for update, done in enumerate((0.0, 0.1, 0.2, 0.3, 0.49, 0.5, 0.75, 0.9)):
        before = parameters[0].item()
        optimizer.step(sum(parameters).sum(), update, done)
        moved.append(before - parameters[0].item())
    # A constant gradient moves a parameter by the learning rate in each update of Adam.
    assert moved == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.2], rel=1e-6)
    assert parameters[1].item() == pytest.approx(0.1 * parameters[0].item(), rel=1e-6)


def test_gradients_are_clipped_together_and_a_state_goes_on() -> None:
    def run(restored_at: int) -> list[torch.Tensor]:
        parameters = [torch.nn.Parameter(torch.tensor(each)) for each in ([1.0, -2.0, 0.5], [3.0, 0.1])]
        optimizer = ScheduledAdamW([([each], 0.1) for each in parameters], SETTINGS)
        for update in range(6):
            if update == restored_at:
                state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
                optimizer = ScheduledAdamW([([each], 0.1) for each in parameters], SETTINGS)
                optimizer.restore(state | {"head.weight": torch.ones(1)})
            optimizer.step(sum(each.pow(4).sum() * (update + 1) for each in parameters), update, update / 6)
        assert sum(each.grad.square().sum() for each in parameters).sqrt() == pytest.approx(1.0)
        return [each.detach() for each in parameters]

    assert all(torch.equal(*each) for each in zip(run(3), run(-1), strict=True))
