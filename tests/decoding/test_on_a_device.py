"""Decoding on a device that isn't the CPU: the same text, no tensor of the host among the device's, and few waits."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from specdec import DraftModelProposer, Generator, Proposer, demo
from specdec.backends.hf import HFBackend
from specdec.errors import SpecdecError
from specdec.heads.medusa import MedusaRunner
from specdec.heads.torch_runner import TorchRunner
from specdec.runtime.probes.costs import measure_costs
from tests.support.generators import HEADS, OF_OTHER_MODELS, PROPOSERS, VERIFIERS, names_of, proposer_of
from tests.support.pretend_device import NAME, PretendDevice, PretendTensor, pretend_device

MASKS = names_of("masks")
CHAIN, TREE, LAYERS = "draft_model", "draft_model:width=2", "draft_model:layers=1"
# Heads by strategy, each with the class that runs them; eagle drafts as eagle3 does.
RUNNERS = {"eagle3": TorchRunner, "medusa": MedusaRunner}
REGISTERED = [*(name for name in names_of("proposers") if name not in {"eagle", *OF_OTHER_MODELS}), TREE, LAYERS]
WITH_OPTIONS = [name for name in PROPOSERS if name not in REGISTERED]
TRAINING_FREE = [name for name in names_of("proposers") if name not in {CHAIN, *HEADS, *OF_OTHER_MODELS}]
ALONE, BATCH = "alone", "batch"
NUM_TOKENS = 4


def cases() -> Iterator[Any]:
    """Yield a strategy, a rule, a mask, and what is drawn, the other being greedy: a text alone or those of a batch.

    Each registered strategy comes once, and trees that have a distribution with every rule, which may read it on the
    device. Other pairs of a strategy and a rule, and strategies with options, are for the night.
    """
    for i, name in enumerate(REGISTERED):
        for j, rule in enumerate(VERIFIERS):
            marks = [] if j == i % len(VERIFIERS) or name == TREE else [pytest.mark.nightly]
            yield pytest.param(name, rule, MASKS[(i + j) % len(MASKS)], (ALONE, BATCH)[(i + j) % 2], marks=marks)
    for i, name in enumerate(WITH_OPTIONS):
        rule, mask = VERIFIERS[i % len(VERIFIERS)], MASKS[i // len(VERIFIERS) % len(MASKS)]
        yield pytest.param(name, rule, mask, (ALONE, BATCH)[i % 2], marks=[pytest.mark.nightly])


@dataclass(frozen=True, slots=True)
class Models:
    """The built-in model, its drafter and its tokenizer."""

    target: Any
    drafter: Any
    tokenizer: Any

    def generator(self, name: str, rule: str = "match", mask: str = "dense") -> Generator:
        """Return one for a strategy by its name."""
        return Generator(self.target, self.tokenizer, proposer=self._proposer(name), verifier=rule, mask=mask)

    def _proposer(self, name: str) -> Proposer:
        if name in {CHAIN, TREE}:
            return DraftModelProposer(model=self.drafter, num_tokens=3, width=1 + (name == TREE))
        if name == LAYERS:
            return DraftModelProposer(layers=1, num_tokens=3)
        return proposer_of(name, self.target.config.vocab_size)


@pytest.fixture(scope="module")
def here(built_in: tuple[Any, Any]) -> Models:
    """On the CPU."""
    model, tokenizer = built_in
    return Models(model, demo.load_drafter(), tokenizer)


@pytest.fixture(scope="module")
def moved(built_in: tuple[Any, Any]) -> Models:
    with pretend_device():
        return Models(demo.load()[0].to(NAME), demo.load_drafter().to(NAME), built_in[1])


@pytest.fixture
def device() -> Iterator[PretendDevice]:
    with pretend_device() as device:
        yield device


@pytest.fixture
def there(moved: Models, device: PretendDevice) -> Models:
    """On the pretend device, which is on."""
    return moved


@pytest.fixture
def passes(moved: Models, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the models on the device were passed through, by "target" and "drafter"."""
    counted = Counter[str]()
    load = HFBackend.load

    def counting(model: Any, compiler: Any, options: Any = None) -> HFBackend:
        backend = load(model, compiler)
        backend.forward = partial(count, backend.forward, model is moved.target)  # type: ignore[method-assign]  # watched
        return backend

    def count(forward: Callable[..., Any], is_target: bool, *args: Any) -> Any:
        counted["target" if is_target else "drafter"] += 1
        return forward(*args)

    monkeypatch.setattr(HFBackend, "load", counting)
    return counted


def prompts() -> list[str]:
    """One of a usual length, one that is longer than parts of attention are, and one of a few tokens."""
    texts = [prompt.text for prompt in demo.prompts()]
    return [texts[1], "\n".join(texts[4:7]), "def f("]


def decode(generator: Generator, drawn: str, **settings: Any) -> list[tuple[int, ...]]:
    """The tokens of one prompt alone, and of two others in a batch."""
    alone, *batch = prompts()
    settings |= {"max_new_tokens": NUM_TOKENS, "seed": 5, "eos_token_id": []}
    results = [
        generator.generate(alone, temperature=float(drawn == ALONE), **settings),
        *generator.generate(batch, temperature=float(drawn == BATCH), **settings),
    ]
    for result in results:
        if result.error is not None:
            raise result.error
    return [result.token_ids for result in results]


@pytest.mark.parametrize(("name", "rule", "mask", "drawn"), [*cases()])
def test_texts_are_the_cpus(here: Models, moved: Models, name: str, rule: str, mask: str, drawn: str) -> None:
    with here.generator(name, rule, mask) as near:
        expected = decode(near, drawn)
    with pretend_device(), moved.generator(name, rule, mask) as far:
        assert far.model.device.type == NAME
        assert decode(far, drawn) == expected


def measured(
    generator: Generator, device: PretendDevice, passes: Counter[str], temperature: float
) -> list[Counter[str]]:
    """Waits and passes of a run, for one prompt and for a ragged batch of three."""
    runs = []
    for batch in (prompts()[:1], prompts()):
        passes.clear()
        before = device.waits
        generator.generate(batch, max_new_tokens=NUM_TOKENS, temperature=temperature, seed=5, eos_token_id=[])
        waits = device.waits - before - len(batch)  # once a text is done its numeric ties are read
        runs.append(passes + Counter(waits=waits))
    return runs


def by_turns(names: Sequence[str]) -> Iterator[Any]:
    """Yield each name greedy and drawn, one of the two for the night: greedy steps and draws take turns."""
    for i, name in enumerate(names):
        for j, temperature in enumerate((0.0, 1.0)):
            yield pytest.param(name, temperature, marks=[pytest.mark.nightly] if (i + j) % 2 else [])


@pytest.mark.parametrize(("name", "temperature"), [*by_turns(TRAINING_FREE)])
def test_a_step_waits_once_and_twice_where_it_draws(
    there: Models, device: PretendDevice, passes: Counter[str], name: str, temperature: float
) -> None:
    with there.generator(name) as generator:
        runs = measured(generator, device, passes, temperature)
    most = 2 if temperature else 1
    assert all(0 < run["waits"] <= most * run["target"] for run in runs), runs


@pytest.mark.parametrize(("name", "temperature"), [*by_turns([*RUNNERS])])
def test_a_step_waits_for_each_pass_of_a_head(
    there: Models,
    device: PretendDevice,
    passes: Counter[str],
    name: str,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_head = RUNNERS[name].run  # type: ignore[attr-defined]

    def counting(*args: Any) -> Any:
        passes["head"] += 1
        return run_head(*args)

    monkeypatch.setattr(RUNNERS[name], "run", counting)
    with there.generator(name) as generator:
        runs = measured(generator, device, passes, temperature)
    most = 2 if temperature else 1
    assert all(0 < run["waits"] <= run["head"] + most * run["target"] for run in runs), runs


# Rules differ where they draw; by day the greedy steps are those of match alone.
DRAFTED = [
    pytest.param(name, rule, temperature, marks=[pytest.mark.nightly] if is_for_the_night else [])
    for name, rule, temperature, is_for_the_night in (
        *((CHAIN, rule, 1.0, False) for rule in VERIFIERS),
        *((CHAIN, rule, 0.0, rule != "match") for rule in VERIFIERS),
        (TREE, "match", 0.0, False),
        (TREE, "match", 1.0, True),
        (LAYERS, "match", 0.0, True),
        (LAYERS, "match", 1.0, False),
    )
]


@pytest.mark.parametrize(("name", "rule", "temperature"), DRAFTED)
def test_a_step_waits_for_each_pass_of_a_drafter_and_twice_more(
    there: Models, device: PretendDevice, passes: Counter[str], name: str, rule: str, temperature: float
) -> None:
    with there.generator(name, rule) as generator:
        runs = measured(generator, device, passes, temperature)
    assert all(0 < run["waits"] <= run["drafter"] + 2 * run["target"] for run in runs), runs


def test_costs_include_the_time_until_the_device_is_done(
    there: Models, device: PretendDevice, passes: Counter[str]
) -> None:
    with there.generator("autoregressive") as generator, closing(generator.open_target()) as target:
        passes.clear()
        before = device.waits
        measure_costs(target, sizes=(1, 6), context=16, repeats=3)
    assert device.waits - before >= passes["target"] - 1 > 10  # the first pass reads the context


def test_the_first_result_names_the_backend(here: Models, there: Models) -> None:
    for models, note in ((here, []), (there, ["decoding with backend hf"])):
        with models.generator("autoregressive") as generator:
            notes = generator.generate("def f(", max_new_tokens=2).notes
            assert [each for each in notes if each.startswith("decoding")] == note


def of_the_host(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores * torch.ones(scores.shape)


def read_by_the_host(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores - scores.max().item()


def not_read(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores - scores.max()


def test_a_tensor_of_the_host_is_refused_while_decoding(here: Models, there: Models) -> None:
    settings: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "logits_processor": of_the_host}
    with here.generator("autoregressive") as near:
        near.generate("def f(", **settings)
    with there.generator("autoregressive") as far, pytest.raises(SpecdecError, match=r"from the host, \(1, 2048\)"):
        far.generate("def f(", **settings)


def test_a_number_that_is_read_while_decoding_is_counted(there: Models, device: PretendDevice) -> None:
    waits = []
    with there.generator("autoregressive") as generator:
        for processor in (read_by_the_host, not_read):
            before = device.waits
            generator.generate("def f(", max_new_tokens=NUM_TOKENS, eos_token_id=[], logits_processor=processor)
            waits.append(device.waits - before)
    assert waits[0] == waits[1] + NUM_TOKENS


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_device_refuses_tensors_of_the_host(device: PretendDevice, mode: Callable[[], Any]) -> None:
    with mode():
        host, x = torch.ones(2, 3), torch.ones(2, 3, device=NAME)
        for mixed in (
            lambda: x + host,
            lambda: host.mul_(x),
            lambda: torch.cat([x, host]),
            lambda: torch.nn.functional.linear(x, host),
            lambda: host[torch.tensor([0], device=NAME)],
            lambda: x.index_select(0, torch.tensor([0])),
        ):
            with pytest.raises(RuntimeError, match="from the host"):
                mixed()
        assert (x + torch.tensor(1.0))[torch.tensor([1])].tolist() == [[2.0] * 3]  # numbers and indices may be


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_device_counts_what_the_host_waits_for(device: PretendDevice, mode: Callable[[], Any]) -> None:
    def cost(act: Callable[[], Any]) -> tuple[int, int]:
        before = device.waits, device.uploads
        act()
        return device.waits - before[0], device.uploads - before[1]

    with mode():
        host, x = torch.ones(2, 3), torch.ones(2, 3, device=NAME)
        waits: list[Callable[[], Any]] = [
            x[0, 0].item, x.tolist, x.cpu, x.nonzero, lambda: bool((x > 0).all()), lambda: int(x[0, 0]),
            lambda: x[x > 0], lambda: x.to("cpu", torch.float64), lambda: host.copy_(x), lambda: torch.equal(x, x),
            lambda: torch.allclose(x, x),
        ]  # fmt: skip
        uploads: list[Callable[[], Any]] = [
            lambda: torch.tensor([1], device=NAME), lambda: host.to(NAME), lambda: x.copy_(host),
            lambda: x[torch.tensor([0])],
        ]  # fmt: skip
        free: list[Callable[[], Any]] = [
            lambda: x[1:].add_(1.0).view(3), lambda: x.max(-1), lambda: torch.zeros(3, device=x.device),
            lambda: x.masked_fill(x > 0, 1.0), lambda: x[torch.zeros(1, dtype=torch.long, device=NAME)],
            lambda: x.to(x.device), lambda: torch.zeros_like(x, device="cpu"),
        ]  # fmt: skip
        assert {cost(act) for act in waits} == {(1, 0)}
        assert {cost(act) for act in uploads} == {(0, 1)}
        assert {cost(act) for act in free} == {(0, 0)}


def test_torch_is_afterwards_as_it_was() -> None:
    def state() -> tuple[object, ...]:
        return torch._C._only_lift_cpu_tensors(), torch.accelerator.current_accelerator(), hasattr(torch, NAME)

    before = state()
    with pretend_device():
        tensor = torch.ones(2, device=NAME)
        assert isinstance(tensor, PretendTensor)
        assert not tensor.is_cpu
    assert state() == before
    assert f"torch.{NAME}" not in sys.modules
    assert torch.ones(2).is_cpu
    with pytest.raises(RuntimeError, match="while that is off"):
        tensor + 1
