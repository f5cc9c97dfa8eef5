"""Every family that converts keeps the backend's laws: trees or chains, ragged batches, and the same bits in exact."""

import tomllib
import weakref
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import openvino as ov
import pytest
import torch
from specdec_openvino import backend as backend_module
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.engine import blocks, filling
from specdec_openvino.engine.bound_request import BoundRequest
from specdec_openvino.engine.graphs import Compiled
from specdec_openvino.options import OpenVINOOptions
from transformers import PreTrainedModel

from specdec import DraftTree, ModelError
from specdec.masks import DenseCompiler, ExactCompiler
from specdec.models import ModelSource, embeddings_of, output_rows_of
from specdec.runtime.probes.walk import walk
from specdec.target import Target
from specdec.testing import check_backend

Make = Callable[[str], PreTrainedModel]
LAYERS = [0, 1, 2, -1]
SIZES = 1, 6, 8  # of passes, on any processor
WINDOWED = {"mistral-window", "qwen2-window", "gemma3", "gpt_oss", "cohere2"}


def test_a_family_keeps_the_laws(
    make: Make, families: ModuleType, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_LEAST", 1)  # so that buffers grow
    model = make(family)
    backend = OpenVINOBackend.load(model, DenseCompiler(), OpenVINOOptions())

    def plain(tokens: list[int]) -> torch.Tensor:
        logits: torch.Tensor = families.plain_logits(model, tokens)[-1]
        return logits

    check_backend(backend, plain, tolerance=1e-4)
    assert backend.shapes.takes_trees == (family not in WINDOWED)
    assert backend.shapes.packs_rows


def test_findings_are_of_the_plug_ins_version_as_well_as_of_the_engines() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert OpenVINOBackend.version == f"{project['version']} on OpenVINO {ov.__version__}"


def test_a_chain_has_the_bits_of_plain_steps_in_exact_numerics(make: Make, family: str) -> None:
    backend = OpenVINOBackend.load(make(family), ExactCompiler(), OpenVINOOptions())
    assert not backend.shapes.takes_trees
    found = walk(Target(backend, ExactCompiler())).result()
    assert not found.inexact
    assert not backend.examination.inexact


@pytest.mark.parametrize("compiler", [DenseCompiler(), ExactCompiler()], ids=["dense", "exact"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "nemotron_h"])
def test_hidden_states_are_transformers(make: Make, name: str, compiler: Any) -> None:
    """In ragged batches, on trees where the engine takes them, and after accepted and rejected branches."""
    model = make(name)
    reference = deepcopy(model)
    target = Target(OpenVINOBackend.load(model, compiler, OpenVINOOptions()), compiler)
    texts: dict[Any, list[int]] = {target.open(64): [], target.open(64): []}
    for step in range(3):
        trees = {row: drafted(5 + 9 * step + number, target.shapes.takes_trees) for number, row in enumerate(texts)}
        planned = target.compile(trees, hidden=LAYERS)
        answers = target.forward(planned).rows
        for row, text in texts.items():
            for leaf in (3, 6)[: 1 + target.shapes.takes_trees]:
                path = trees[row].lineage(leaf)
                tokens = [*text, *(trees[row].tokens[node] for node in path)]
                with torch.no_grad():
                    own = reference(torch.tensor([tokens]), output_hidden_states=True).hidden_states
                expected = torch.stack([own[layer][0] for layer in LAYERS], 1)[len(text) :]
                torch.testing.assert_close(answers[row].hidden(path, LAYERS), expected, atol=1e-4, rtol=0)
        kept = {row: trees[row].lineage(5 if target.shapes.takes_trees else 2) for row in texts}
        target.commit(planned, kept)
        for row, text in texts.items():
            text += [trees[row].tokens[node] for node in kept[row]]


def chain(num_nodes: int) -> DraftTree:
    tree = DraftTree(5)
    tree.add_chain(0, range(6, 5 + num_nodes))
    return tree


def drafted(root: int, has_branches: bool) -> DraftTree:
    tree = DraftTree(root)
    tree.add_chain(0, [root + 1, root + 2, root + 3])
    if has_branches:
        tree.add_chain(0, [root + 4, root + 5, root + 6])
    return tree


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gpt_neox"])
def test_a_model_of_16_bits_is_fused_as_one_of_32_is(families: ModuleType, name: str, bfloat16: torch.dtype) -> None:
    numbers = list[Counter[str]]()
    for dtype in (torch.float32, bfloat16):
        model = families.make(*families.TREES[name]).to(dtype)
        backend = OpenVINOBackend.load(model, ExactCompiler(), OpenVINOOptions())
        assert not walk(Target(backend, ExactCompiler())).result().inexact
        operations = backend._passes._compiled.model.get_runtime_model().get_ops()
        numbers.append(Counter(node.get_rt_info()["layerType"].astype(str) for node in operations))
    assert numbers[0]["PagedAttention"] == 2
    for kind in ("RoPE", "RMS", "MVN", "FullyConnected", "PagedAttention"):
        assert numbers[1][kind] == numbers[0][kind], kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gpt_neox"])
def test_in_exact_numerics_hidden_states_change_no_bit_of_logits(
    families: ModuleType, name: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    if dtype == torch.bfloat16:
        request.getfixturevalue("bfloat16")
    model, compiler = families.make(*families.TREES[name]).to(dtype), ExactCompiler()
    backend = OpenVINOBackend.load(model, compiler, OpenVINOOptions())
    target = Target(backend, compiler)

    def logits(hidden: list[int]) -> list[torch.Tensor]:
        row, found = target.open(128), list[torch.Tensor]()
        for step, width in enumerate((40, 1, 4, 8, 2)):
            tree = DraftTree(5 + step)
            nodes = [0, *tree.add_chain(0, [(7 * node + step) % 90 for node in range(1, width)])]
            planned = target.compile({row: tree}, hidden=hidden)
            found.append(target.forward(planned).rows[row].output.logits)
            target.commit(planned, {row: nodes[: width // 2 + 1]})
        target.release(row)
        return found

    without, graph = logits([]), weakref.ref(backend._passes._compiled)
    assert all(map(torch.equal, logits([1, -1]), without))
    assert graph() is None, "one graph serves all passes"
    assert all(map(torch.equal, logits([]), without))


def test_in_exact_numerics_a_graph_of_other_bits_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = ExactCompiler()
    backend = OpenVINOBackend.load(make("llama"), compiler, OpenVINOOptions())
    tried = OpenVINOBackend._tried
    monkeypatch.setattr(
        OpenVINOBackend, "_tried", lambda self: [each + len(self._passes.hidden) for each in tried(self)]
    )
    with pytest.raises(ModelError, match="other bits where it gives hidden states: use numerics='fast'"):
        backend.expect_hidden([1])
    target = Target(backend, compiler)
    row = target.open(8)
    assert target.forward(target.compile({row: DraftTree(5)})).rows[row].logits(0).isfinite().all()


def test_a_model_of_a_folder_has_the_embeddings_of_its_files(make: Make, tmp_path: Path) -> None:
    model = make("llama")
    model.save_pretrained(tmp_path)
    opened, _ = OpenVINOBackend.read(ModelSource(str(tmp_path)), object(), OpenVINOOptions())
    assert not isinstance(opened, PreTrainedModel)
    assert torch.equal(embeddings_of(opened), model.get_input_embeddings().weight)
    assert torch.equal(output_rows_of(opened, [7, 0]), model.get_output_embeddings().weight[[7, 0]])


def test_memory_goes_with_the_last_row(make: Make) -> None:
    compiler = DenseCompiler()
    backend = OpenVINOBackend.load(make("llama"), compiler, OpenVINOOptions())
    target = Target(backend, compiler)
    row = target.open(8)
    backend._blocks.reserve(0, 100 * backend._blocks.size)
    target.forward(target.compile({row: DraftTree(5)}))
    held = [weakref.ref(cache.untyped_storage()) for cache in backend._blocks.caches()]
    assert backend.cache_bytes(()) > 0
    target.release(row)
    assert backend.cache_bytes(()) == 0
    assert not any(each() for each in held)


@pytest.mark.parametrize(
    ("compiler", "sizes"),
    [
        (DenseCompiler(), [0, 1, 1, 1, 1, 1, 1, 6, 6, 0, 1, 0, 1]),
        (ExactCompiler(), [0, 6, 6, 6, 6, 6, 6, 6, 6, 8, 6, 0, 6]),
    ],
    ids=["dense", "exact"],
)
def test_passes_on_graphs_with_static_shapes_have_the_same_bits(
    make: Make, monkeypatch: pytest.MonkeyPatch, compiler: Any, sizes: list[int]
) -> None:
    monkeypatch.setattr(backend_module, "pass_sizes", lambda *_: SIZES)
    monkeypatch.setattr(filling, "_PATIENCE", 0)  # so that single tokens are alone, as in plain decoding
    monkeypatch.setattr(blocks, "_LEAST", 1)  # so that the cache moves between two passes of a static graph
    run, ran = BoundRequest.run, list[int]()

    def noted(self: BoundRequest, inputs: Any) -> None:
        ran.append(self.num_tokens)
        run(self, inputs)

    monkeypatch.setattr(BoundRequest, "run", noted)
    found, backends = list[list[torch.Tensor]](), list[OpenVINOBackend]()  # which share their graphs
    for static_sizes, expected in ((0, [0] * len(sizes)), (2, sizes)):
        options = OpenVINOOptions(static_sizes=static_sizes)
        backends.append(backend := OpenVINOBackend.load(make("llama"), compiler, options))
        target = Target(backend, compiler)
        layers = [1] if target.shapes.takes_trees else []
        backend.expect_hidden(layers)
        ran.clear()
        row, found = target.open(128), [*found, []]
        for step, width in enumerate((40, 1, 1, 1, 1, 1, 1, 6, 3, 8, 1, 40, 1)):
            tree = DraftTree(5 + step)
            nodes = [0, *tree.add_chain(0, [(7 * node + step) % 90 for node in range(1, width)])]
            if target.shapes.takes_trees and width == 3:
                tree.add(0, 91)
            planned = target.compile({row: tree}, hidden=layers)
            output = target.forward(planned).rows[row].output
            found[-1] += [output.logits, *output.hidden]
            target.commit(planned, {row: nodes[: width // 2 + 1]})
        assert ran == expected
        assert backend._blocks.generation > 1
        trees = {each: chain(3) for each in (row, target.open(8))}  # together as many tokens as a static graph has
        answers = target.forward(target.compile(trees, hidden=layers)).rows
        found[-1] += [answers[each].output.logits for each in trees]
        assert ran[-1] == 0
    assert all(map(torch.equal, *found))


def test_each_graph_is_compiled_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "pass_sizes", lambda *_: SIZES)
    model, compiled = deepcopy(make("llama")), list[int]()
    OpenVINOBackend.load(model, DenseCompiler(), OpenVINOOptions()).close()  # converts the model
    make_graph = Compiled.__init__

    def counted(self: Compiled, *given: Any) -> None:
        compiled.append(given[-1])
        make_graph(self, *given)

    monkeypatch.setattr(Compiled, "__init__", counted)
    backend = OpenVINOBackend.load(model, DenseCompiler(), OpenVINOOptions(static_sizes=2))
    assert sorted(compiled) == [0, 1, 6]
    backend.expect_hidden([1])
    assert sorted(compiled[3:]) == [0, 1, 6]
