"""Models with recurrent and convolutional layers: no rejected token stays in a state."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec import DraftModelProposer, Generator, ModelError, custom_generate
from specdec.backends import supported_passes, wide_passes
from specdec.backends.hf import HFBackend
from specdec.backends.states.state_cache_choice import RecurrentGemmaStates
from specdec.backends.states.state_costs import MOST_PENDING
from specdec.backends.states.stateful_cache import StatefulCache
from specdec.backends.static import StaticBackend
from specdec.backends.wide_passes import limited_modules, without_limits
from specdec.masks.dense import DenseCompiler
from specdec.models.notes import lock_of
from specdec.record import StepRecord
from specdec.runtime.probes.costs import measure_costs
from specdec.target import Target
from specdec.testing import check_backend
from specdec.tree import ROOT, DraftTree, Role
from tests.decoding.test_contexts import conversations
from tests.laws.test_backend_laws import plain_of
from tests.support import families
from tests.support.examined import examined
from tests.support.plain import decode_model

TOLERANCE = 2e-4  # a recurrence rounds otherwise in a pass over several tokens; a mistake causes 0.1 and more
ONE_OF_EACH_KIND = ["lfm2", "qwen3_next", "granitemoehybrid", "falcon_h1", "mamba2"]
SCANS = ["mamba", "falcon_mamba", "jamba", "zamba"]  # which start empty in passes over several tokens
STRATEGIES = ["prompt_lookup:num_tokens=6", "lookahead:N=3,W=3,G=3", "jacobi:n=4", "auto"]
compiler = DenseCompiler()


def made(name: str) -> PreTrainedModel:
    return families.make(*families.STATES[name])


def loaded(model: PreTrainedModel) -> HFBackend:
    return examined(HFBackend.load(model, compiler))


def texts(count: int, seed: int = 1) -> list[list[int]]:
    """Prompts that repeat themselves, so that drafts are accepted now and then."""
    rng = random.Random(seed)
    parts = [[rng.randrange(2, families.VOCAB) for _ in range(rng.randint(3, 7))] for _ in range(count)]
    return [(part * 6)[: rng.randint(5, 30)] for part in parts]


@pytest.mark.parametrize("name", families.STATES)
def test_kept_tokens_equal_a_fresh_pass_for_any_drafts_and_rollbacks(name: str) -> None:
    model = made(name)
    backend = loaded(model)
    assert not backend.shapes.takes_trees
    with without_limits(limited_modules(model)):  # of prompts, whose last token the checks don't say
        for seed in range(2 if name in ONE_OF_EACH_KIND else 1):
            check_backend(backend, plain_of(model), tolerance=TOLERANCE, seed=seed)


def with_strategies() -> Iterator[Any]:
    """Yield all families, with every strategy those of each kind; by day one strategy of each kind, which take turns.

    Those that aren't named are for the night, as others have layers of the same kind.
    """
    for name in families.STATES:
        if name not in ONE_OF_EACH_KIND:
            marks = [] if name == "nemotron_h" else [pytest.mark.nightly]
            yield pytest.param(name, STRATEGIES[:1], id=name, marks=marks)
            continue
        first = ONE_OF_EACH_KIND.index(name) % len(STRATEGIES)
        yield pytest.param(name, STRATEGIES[first : first + 1], id=name)
        yield pytest.param(name, STRATEGIES, id=f"{name}-every", marks=pytest.mark.nightly)


@pytest.mark.parametrize(("name", "strategies"), [*with_strategies()])
def test_every_strategys_text_is_that_of_transformers(name: str, strategies: list[str]) -> None:
    model, prompts = made(name), texts(3)
    generator = Generator(model, proposer="prompt_lookup", max_batch_size=2)
    greedy = [
        model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=16, do_sample=False
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    sampled = [decode_model(model, prompt, 16, 5, eos=()) for prompt in prompts]
    num_accepted = 0
    for strategy in strategies:
        for temperature, expected in ((0.0, greedy), (1.0, sampled)):
            settings = {"max_new_tokens": 16, "eos_token_id": (), "temperature": temperature, "seed": 5}
            results = generator.generate(prompts, proposer=strategy, **settings)
            assert [list(result.token_ids) for result in results] == expected
            num_accepted += sum(sum(result.stats.accepted_lengths) for result in results)
    assert num_accepted > 0


@pytest.mark.parametrize("name", [*ONE_OF_EACH_KIND, "nemotron_h"])
def test_text_with_kept_contexts_is_the_text_from_scratch(name: str) -> None:
    kept, fresh = (Generator(made(name), proposer="autoregressive") for _ in range(2))
    assert conversations(kept, fresh, families.VOCAB, 3) > 10


def counted(model: PreTrainedModel) -> list[int]:
    """Return the list to which each later pass of a model adds the number of tokens it reads."""
    fed = list[int]()
    model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].numel()))
    return fed


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_rejected_drafts_cost_at_most_the_pending_tokens(name: str) -> None:
    """A row's states follow its text, and no pass reads more than the pending tokens again."""
    model = made(name)
    backend = loaded(model)
    target, cache, fed = Target(backend, compiler), backend._cache, counted(model)
    assert isinstance(cache, StatefulCache)
    row = target.open(capacity=128)
    target.read_all(row, list(range(2, 40)))
    for step in range(60):
        tree = DraftTree(3 + step % 7)
        tree.add_chain(ROOT, [5, 6])
        planned = target.compile({row: tree})
        found = target.forward(planned).rows[row].logits(ROOT)
        target.commit(planned, {row: (ROOT,)})
    assert max(fed[1:]) <= MOST_PENDING + 2
    assert (max(fed[1:]) == 3) == (name != "qwen3_next")  # the others' states are known after each token
    assert len(fed) <= 1 + 60 + 60 // MOST_PENDING + 1
    num_checkpoints = len(cache._rows[0].checkpoints)
    assert num_checkpoints <= 4  # with that of the empty text
    assert cache.row_bytes > 0
    text = [*range(2, 40), *(3 + step % 7 for step in range(60))]
    assert float((found - families.plain_logits(model, text)[-1]).abs().max()) <= TOLERANCE
    target.release(row)


def test_nodes_that_are_no_text_do_not_count_as_text() -> None:
    """Lookahead's own nodes, which are never accepted, must not keep the checkpoint from moving."""
    model = made("qwen3_next")
    target = Target(loaded(model), compiler)
    row, fed = target.open(capacity=128), counted(model)
    for step, prefix in enumerate([list(range(2, 40)), *[[]] * 60]):
        tree = DraftTree(3 + step % 7)
        tree.add_chain(tree.add(ROOT, 5, Role.SUPPORT), [6, 7, 8, 9], Role.PROBE)
        planned = target.compile({row: tree}, {row: prefix})
        target.forward(planned)
        target.commit(planned, {row: (ROOT,)})
    assert fed[:2] == [39, 5]  # the text, and then the draft
    assert max(fed[2:]) < MOST_PENDING + 6


def test_the_record_of_a_step_counts_tokens_that_were_read_again() -> None:
    model, records = made("qwen3_next"), list[StepRecord]()
    generator = Generator(model, proposer="prompt_lookup:num_tokens=6")
    fed, num_rereads = counted(model), 0
    for prompt in texts(3):
        del fed[:], records[:]
        generator.generate(prompt, max_new_tokens=24, eos_token_id=(), on_step=records.append)
        assert sum(record.width for record in records) == sum(fed)
        for record in records:
            own = record.outcomes[0].tree
            if record.kind == "step" and own is not None:
                assert record.width == len(own) + record.num_reread
        num_rereads += sum(record.num_reread > 0 for record in records)
    assert num_rereads > 3


def test_a_draft_model_may_have_states() -> None:
    target, drafter = families.make(*families.TREES["llama"]), made("qwen3_next")
    for model, draft in ((target, drafter), (drafter, target), (drafter, drafter)):
        generator = Generator(model, proposer=DraftModelProposer(model=draft, num_tokens=4))
        for prompt in texts(2):
            expected = decode_model(model, prompt, 12, None, eos=())
            assert list(generator.generate(prompt, max_new_tokens=12, eos_token_id=()).token_ids) == expected


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2"])
def test_custom_generate_and_early_exit_give_the_same_text(name: str) -> None:
    model, prompt = made(name), texts(1)[0]
    ids = torch.tensor([prompt])
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, **settings)
    drafted = model.generate(ids, **settings, custom_generate=custom_generate(proposer="prompt_lookup"))
    assert torch.equal(drafted, expected)
    early = Generator(model, proposer="draft_model:layers=1")  # whose only layer has no attention
    result = early.generate(prompt, max_new_tokens=12, eos_token_id=())
    assert list(result.token_ids) == expected[0, len(prompt) :].tolist()


def test_what_does_not_keep_states_refuses_such_models() -> None:
    with pytest.raises(ModelError, match=r"of kind conv .*use backend='hf'"):
        StaticBackend.load(made("lfm2"), compiler)


def test_exact_numerics_are_refused_with_the_reason() -> None:
    generator = Generator(made("qwen3_next"), proposer="autoregressive")
    assert "takes chains only (its linear_attention layers keep a state of one text)" in generator.numerics.inexact
    with pytest.raises(ModelError, match="numerics='exact' is unavailable here"):
        Generator(made("qwen3_next"), numerics="exact")


# Models whose later tokens each have a pass of their own, by their code.
STEPWISE = {
    "recurrent_gemma": families.RECURRENT_GEMMA,
    **{name: {**families.STATES, **families.MORE_STATES}[name] for name in SCANS},
}


def without_a_cache(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(int(families.plain_logits(model, text)[-1].argmax()))
    return text[len(prompt) :]


@pytest.mark.usefixtures("no_findings")
@pytest.mark.parametrize("name", STEPWISE)
def test_models_that_read_only_beginnings_in_one_pass_decode_without_drafts(name: str) -> None:
    model = families.make(*STEPWISE[name])
    generator = Generator(model, proposer="prompt_lookup", max_batch_size=2)
    fed, prompts = counted(model), texts(3)
    results = generator.generate(prompts, max_new_tokens=6, eos_token_id=())
    assert max(fed) == max(map(len, prompts))  # a prompt is read in one pass
    assert fed.count(2) + fed.count(1) == 2 * 5  # of two rows, and then of the third
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == without_a_cache(model, prompt, 6)
    (note,) = (note for note in results[0].notes if "decoded without drafts: " in note)
    assert "layers keep a state of one text, and its code ignores the " in note


# The scans but one are for the night: contexts are kept by the same code for all.
@pytest.mark.parametrize(
    "name", ["recurrent_gemma", SCANS[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in SCANS[1:])]
)
def test_contexts_are_kept_where_only_beginnings_are_read_in_one_pass(name: str) -> None:
    model = families.make(*STEPWISE[name])
    kept, fresh = (Generator(model, proposer="prompt_lookup") for _ in range(2))
    assert conversations(kept, fresh, families.VOCAB, 1) > 0


@pytest.mark.parametrize("name", SCANS)
def test_the_self_test_finds_scans_that_start_empty(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supported_passes, "READS_BEGINNINGS_ONLY", {})
    model = families.make(*{**families.STATES, **families.MORE_STATES}[name])
    generator, prompt = Generator(model, proposer="prompt_lookup"), texts(1)[0]
    assert not generator.shapes.takes_drafts
    result = generator.generate(prompt, max_new_tokens=6, eos_token_id=())
    assert list(result.token_ids) == without_a_cache(model, prompt, 6)


def test_states_that_the_model_holds_itself_are_one_threads_during_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, is_free = families.make(*families.RECURRENT_GEMMA), list[bool]()

    def takes_lock() -> bool:
        is_taken = lock_of(model).acquire(blocking=False)  # type: ignore[attr-defined]
        if is_taken:
            lock_of(model).release()  # type: ignore[attr-defined]
        return bool(is_taken)

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with ThreadPoolExecutor(1) as other:
                is_free.append(other.submit(takes_lock).result())
            return change(*args)

        return call

    for name in ("enter", "leave"):
        monkeypatch.setattr(RecurrentGemmaStates, name, watched(getattr(RecurrentGemmaStates, name)))
    Generator(model, proposer="autoregressive").generate([3, 4, 5], max_new_tokens=3, eos_token_id=())
    assert is_free
    assert not any(is_free)


def test_recurrent_gemma_in_half_precision_decodes() -> None:
    config_class, arguments = families.RECURRENT_GEMMA
    model = families.make(config_class, {**arguments, "num_hidden_layers": 6}).to(torch.bfloat16)
    with pytest.warns(UserWarning, match="decoding with fast numerics"):
        generator = Generator(model, proposer="autoregressive")
    assert len(generator.generate([3, 4, 5] * 3, max_new_tokens=6, eos_token_id=()).token_ids) == 6


def test_a_prompt_is_read_anew_if_its_time_steps_are_limited_and_only_beginnings_can_be_read() -> None:
    model = made("nemotron_h")
    passes = HFBackend.assumed_passes(model).by_single_tokens("of a test")
    target = Target(HFBackend(model, compiler, passes), compiler)
    row, fed = target.open(capacity=64), counted(model)
    target.read_all(row, list(range(2, 40)))
    target.rollback(row, 38)
    planned = target.compile({row: DraftTree(7)}, {row: [5, 6]})
    target.forward(planned)
    assert fed == [38, 41]


def test_a_model_without_drafts_is_timed_on_single_tokens() -> None:
    model = families.make(*families.RECURRENT_GEMMA)
    backend, fed = loaded(model), counted(model)
    costs = measure_costs(Target(backend, compiler), sizes=(1, 4), context=16, repeats=1)
    assert costs.sizes == (1, 4)
    assert costs.at(4) == 4 * costs.at(1)
    assert fed[1:] == [1] * len(fed[1:])


def test_a_short_pass_has_short_chunks_of_a_scan_and_the_same_states() -> None:
    config_class, arguments = families.STATES["mamba2"]
    model = families.make(config_class, {**arguments, "chunk_size": 256})
    backend, layer, sizes = loaded(model), model.backbone.layers[0].mixer, list[tuple[int, int]]()
    layer.register_forward_pre_hook(lambda module, inputs: sizes.append((inputs[0].shape[1], module.chunk_size)))
    check_backend(backend, plain_of(model), tolerance=TOLERANCE)
    assert {width for width, size in sizes if size == 1} >= {3, 5, 8}  # drafts, whose tokens may be rejected
    assert {width for width, size in sizes if 1 < size == width}  # prompts, and drafts after one that was accepted
    assert {size for width, size in sizes if size not in (1, width)} == {256}  # single tokens, and without specdec
    assert layer.chunk_size == 256


def test_chunks_are_changed_on_a_cpu_only() -> None:
    model = made("mamba2")
    assert wide_passes.WidePasses(model).chunked
    assert not wide_passes.WidePasses(model.to("meta")).chunked


def test_limits_of_time_steps_are_restored() -> None:
    model = made("nemotron_h")
    limited = limited_modules(model)
    before = [module.time_step_limit for module in limited]
    assert before == [(families.LIMIT, float("inf"))]
    Generator(model, proposer="prompt_lookup").generate([3, 4, 5] * 3, max_new_tokens=8, eos_token_id=())
    assert [module.time_step_limit for module in limited] == before


@pytest.mark.parametrize(("name", "expected"), [("mamba2", [11]), ("nemotron_h", [9, 2])])
def test_a_prompt_has_a_pass_of_its_own_where_time_steps_are_limited_in_it(name: str, expected: list[int]) -> None:
    model = made(name)
    target, tree = Target(HFBackend.load(model, compiler), compiler), DraftTree(9)
    tree.add_chain(ROOT, [3, 4])
    row, fed = target.open(capacity=64), counted(model)
    target.forward(target.compile({row: tree}, {row: range(2, 10)}))
    assert fed == expected
