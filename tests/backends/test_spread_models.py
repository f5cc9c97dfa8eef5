"""Models that one process holds in several places, as accelerate spreads them."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from specdec import Generator
from tests.support import families
from tests.support.plain import decode_model


@pytest.mark.filterwarnings("ignore:.*are unavailable:UserWarning")  # matrices that aren't in memory can't be tried
def test_a_model_whose_layers_lie_on_disk_writes_its_own_text(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    whole = families.make(*families.TREES["llama"])
    whole.save_pretrained(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
              "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    spread = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offloaded"
    )
    assert {parameter.device.type for parameter in spread.parameters()} == {"cpu", "meta"}
    generator = Generator(spread.eval(), proposer="lookahead:N=4,W=4,G=4")
    assert generator.shapes.takes_trees
    found = generator.generate([1, 2, 3], max_new_tokens=30).token_ids
    assert [*found] == decode_model(whole, [1, 2, 3], 30, None, eos=())
