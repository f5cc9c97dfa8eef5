from types import SimpleNamespace

import pytest
import torch
from specdec_openvino.engine.pass_sizes import pass_sizes

from specdec.layout import Padding


class Config(SimpleNamespace):
    def get_text_config(self) -> "Config":
        return self


@pytest.mark.parametrize(
    ("capability", "device", "sizes"),
    [("AVX2", "CPU", [2, 4, 4, 6, 6]), ("AVX512", "CPU", [6, 6, 6, 6, 6]), ("AVX2", "GPU", [6, 6, 6, 6, 6])],
)
def test_small_passes_are_padded_less_where_each_token_costs(
    monkeypatch: pytest.MonkeyPatch, capability: str, device: str, sizes: list[int]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    padding = Padding(pass_sizes(Config(), device))
    assert padding.size(1) == 1
    assert [padding.size(num_tokens) for num_tokens in range(2, 7)] == sizes
    assert [padding.size(num_tokens) for num_tokens in (7, 31, 33)] == [8, 32, 33]


def test_passes_of_mixtures_are_not_padded() -> None:
    assert pass_sizes(Config(num_local_experts=4), "CPU") == ()
