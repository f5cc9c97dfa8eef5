"""The attention keeps the laws of its contract, captured passes included, and its texts are those of the model."""

from specdec_example_attention import TreeBitsCompiler, specdec_masks

from specdec import Generator, demo
from specdec.testing import check_mask


def test_it_keeps_the_contract() -> None:
    check_mask(TreeBitsCompiler())


def test_its_text_is_the_models() -> None:
    model, tokenizer = demo.load()
    compiler = specdec_masks()["tree_bits"]()
    texts = [
        Generator(model, tokenizer, proposer=proposer, mask=mask)
        .generate("# heapq\ndef merge(", max_new_tokens=24)
        .text
        for proposer, mask in (("prompt_lookup", compiler), ("autoregressive", "dense"))
    ]
    assert texts[0] == texts[1]
