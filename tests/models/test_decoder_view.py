"""Decoders of encoder-decoder models: trees in ragged batches equal the model's own forward along each path."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

import specdec
from specdec import DraftTree, Generator, ModelError
from specdec.apps.in_transformers import release
from specdec.backends.hf import HFBackend
from specdec.backends.output import OutputRow
from specdec.inputs.encoded import EncodedPrompt
from specdec.masks.dense import DenseCompiler
from specdec.models.decoder_view import DecoderView
from specdec.models.encoder_decoders import EncoderOutput, decoder_of
from specdec.target import CacheRow, Target
from tests.support import encoder_decoders
from tests.support.encoder_decoders import MODELS, VOCAB, encoder_inputs, make
from tests.support.examined import examined
from tests.support.generators import path_to, random_tree
from tests.support.whisper import whisper

TOLERANCE, SEEN = 1e-5, 1e-3
PAD = 1
compiler = DenseCompiler()


class Rows:
    """The rows of a target, each with a decoder's prompt and the inputs of its encoder."""

    def __init__(self, family: str) -> None:
        self.family, self.model = family, make(family)
        self.backend: HFBackend = examined(HFBackend.load(decoder_of(self.model), compiler))
        self.target = Target(self.backend, compiler)
        self.rng = np.random.default_rng(3)
        self.open: list[tuple[CacheRow, list[int], dict[str, torch.Tensor]]] = []

    def add(self, seed: int, num_states: int, num_tokens: int) -> None:
        text = self.tokens(num_tokens)
        inputs = encoder_inputs(self.family, self.model, seed, num_states)
        row = self.target.open(96)
        self.target.set_inputs(row, EncodedPrompt(num_tokens, encoded(self.model, inputs)))
        self.target.read_all(row, text)
        self.open.append((row, text, inputs))

    def tokens(self, count: int) -> list[int]:
        return [int(token) for token in self.rng.integers(4, VOCAB, size=count)]

    def tree(self) -> DraftTree:
        drawn = random_tree(self.rng, VOCAB - 4, int(self.rng.integers(4, 12)))
        tree = DraftTree(drawn.tokens[0] + 4)
        for node in range(1, len(drawn)):
            tree.add(drawn.parents[node], drawn.tokens[node] + 4)
        return tree

    def release(self, number: int) -> None:
        row, *_ = self.open.pop(number)
        self.target.release(row)

    def furthest(self, trees: Sequence[DraftTree]) -> float:
        """Forward a tree per row and commit a path of each; return the largest distance to the model's own logits."""
        planned = self.target.compile({row: tree for (row, *_), tree in zip(self.open, trees, strict=True)})
        output = self.target.forward(planned)
        worst, paths = 0.0, {}
        for (row, text, inputs), tree in zip(self.open, trees, strict=True):
            worst = max(worst, distance(self.model, inputs, text, tree, output.rows[row]))
            paths[row] = tuple(path_to(tree, int(self.rng.integers(len(tree)))))
            text += [tree.tokens[node] for node in paths[row]]
        self.target.commit(planned, paths)
        return worst


def encoded(model: Any, inputs: dict[str, torch.Tensor]) -> EncoderOutput:
    with torch.no_grad():
        return EncoderOutput(model.get_encoder()(**inputs), inputs.get("attention_mask"))


@torch.no_grad()
def distance(model: Any, inputs: dict[str, torch.Tensor], text: list[int], tree: DraftTree, found: OutputRow) -> float:
    """The largest distance of a node's logits to those of the whole model's forward, without a cache, on its path."""
    worst = 0.0
    for node in range(len(tree)):
        path = [tree.tokens[each] for each in path_to(tree, node)]
        own = model(**inputs, decoder_input_ids=torch.tensor([[*text, *path]]), use_cache=False).logits[0, -1]
        worst = max(worst, float((found.logits(node) - own).abs().max()))
    return worst


@pytest.fixture(params=MODELS, scope="module")
def rows(request: pytest.FixtureRequest) -> Rows:
    return Rows(request.param)


@pytest.fixture(autouse=True)
def _closed(request: pytest.FixtureRequest) -> None:
    if "rows" in request.fixturenames:
        left = request.getfixturevalue("rows")
        while left.open:
            left.release(0)


def test_trees_of_ragged_rows_equal_the_models_own_forward_on_each_path(rows: Rows) -> None:
    assert rows.backend.shapes.takes_trees, rows.backend.examination.reason
    rows.add(seed=4, num_states=11, num_tokens=5)
    assert rows.furthest([rows.tree()]) <= TOLERANCE
    rows.add(seed=5, num_states=7, num_tokens=12)
    rows.add(seed=6, num_states=9, num_tokens=2)
    for _ in range(2):
        assert rows.furthest([rows.tree() for _ in rows.open]) <= TOLERANCE
    rows.release(0)  # the last row takes its number
    assert rows.furthest([rows.tree() for _ in rows.open]) <= TOLERANCE
    held = rows.open[0][0].inputs  # as by the caller's list of prompts
    rows.release(0)
    rows.add(seed=7, num_states=11, num_tokens=3)  # as many rows as in the last pass
    assert rows.furthest([rows.tree() for _ in rows.open]) <= TOLERANCE
    assert held is not None


def test_another_rows_states_show(rows: Rows) -> None:
    rows.add(seed=4, num_states=11, num_tokens=5)
    rows.add(seed=5, num_states=11, num_tokens=6)
    (first, *_), (second, *_) = rows.open
    own, other = first.inputs, second.inputs
    rows.target.set_inputs(first, other)
    rows.target.set_inputs(second, own)
    assert rows.furthest([rows.tree(), rows.tree()]) > SEEN


def test_a_padding_token_in_a_draft_is_decoded_as_generate_decodes_it() -> None:
    rows = Rows("nllb")
    rows.add(seed=4, num_states=11, num_tokens=5)
    [(row, text, inputs)] = rows.open
    tree = DraftTree(9)
    for parent, token in enumerate((PAD, 7, 8)):
        tree.add(parent, token)
    found = rows.target.forward(rows.target.compile({row: tree})).rows[row]
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    output = encoded(rows.model, inputs).output
    with torch.no_grad():
        rows.model(encoder_outputs=output, decoder_input_ids=torch.tensor([text]), cache=cache)
        for node, token in enumerate(tree.tokens):
            own = rows.model(encoder_outputs=output, decoder_input_ids=torch.tensor([[token]]), cache=cache).logits
            assert float((found.logits(node) - own[0, -1]).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("family", ["bart", "whisper", "t5", "donut"])
def test_keys_of_an_encoders_output_are_computed_once_for_a_prompt(family: str) -> None:
    rows = Rows(family)
    names = ("encoder_attn.k_proj", "EncDecAttention.k")
    projections = [module for name, module in rows.backend.model.decoder.named_modules() if name.endswith(names)]
    counts = [0]
    for module in projections:
        module.register_forward_hook(lambda *_: counts.__setitem__(0, counts[0] + 1))
    for seed in (4, 5):
        rows.add(seed=seed, num_states=11, num_tokens=5)
        rows.furthest([DraftTree(9) for _ in rows.open])
    counted, counts[0] = counts[0], 0
    with torch.no_grad():
        for _, text, inputs in rows.open:
            rows.model(**inputs, decoder_input_ids=torch.tensor([text]), use_cache=False)
    assert len(projections) == 2
    # Of the comparisons with the model's own forward: one for each row that was open.
    assert counted == counts[0] + 3 * len(projections)


def test_the_callers_model_is_unchanged() -> None:
    model = make("bart")

    def facts() -> tuple[object, ...]:
        parts = {name: id(part) for name, part in model.named_modules()}
        return model.config.to_dict(), model.config._attn_implementation, parts

    before = facts()
    view = decoder_of(model)
    assert decoder_of(model) is view
    assert decoder_of(view) is view
    assert (view.config.num_hidden_layers, model.config.num_hidden_layers) == (2, 1)
    assert (view.config.is_encoder_decoder, model.config.is_encoder_decoder) == (False, True)
    with pytest.raises(IndexError), torch.no_grad():
        view(torch.tensor([[VOCAB]]), position_ids=torch.tensor([[0]]), logits_to_keep=1)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert facts() == before


def test_attention_switched_in_the_views_configuration_is_that_of_the_decoders_layers() -> None:
    for family in MODELS:
        view = decoder_of(encoder_decoders.MODELS[family]())
        view.config._attn_implementation = "eager"
        kinds = {part.config._attn_implementation for part in view.decoder.modules() if hasattr(part, "config")}
        assert kinds == {"eager"}, family


def test_a_pass_without_an_encoders_output_is_always_the_same() -> None:
    view, other = decoder_of(make("t5")), decoder_of(make("t5"))
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(view(ids).logits, other(ids).logits)
        assert torch.equal(view(ids, logits_to_keep=torch.tensor([0, 2])).logits, view(ids).logits[:, [0, 2]])


def test_a_model_without_a_head_is_refused_with_the_remedy() -> None:
    from transformers import BartConfig, BartModel

    model = BartModel(BartConfig(vocab_size=32, d_model=16, encoder_layers=1, decoder_layers=1))
    with pytest.raises(ModelError, match="AutoModelForSeq2SeqLM"):
        decoder_of(model)


@pytest.mark.filterwarnings("ignore")
def test_a_copy_of_a_model_that_was_decoded_is_decoded_by_itself() -> None:
    model, processor = whisper()
    sound = np.sin(np.arange(32_000) / 9).astype(np.float32)
    inputs = processor.feature_extractor(sound, sampling_rate=16_000, return_tensors="pt")
    settings: dict[str, Any] = {**inputs, "max_new_tokens": 8, "do_sample": False}
    decode = specdec.custom_generate(proposer="prompt_lookup")
    with Generator(model, processor, proposer="prompt_lookup") as generator:
        generator.generate(**inputs, max_new_tokens=8)
        copied = copy.deepcopy(model)
    with Generator(copied, processor, proposer="prompt_lookup") as generator:
        assert generator.numerics.mode == "exact"
    assert copied.generate(**settings, custom_generate=decode).tolist() == model.generate(**settings).tolist()
    release(copied)


def test_a_decoder_only_model_is_left_as_it_is() -> None:
    assert decoder_of("path") == "path"
    assert not isinstance(decoder_of(torch.nn.Linear(1, 1)), DecoderView)
