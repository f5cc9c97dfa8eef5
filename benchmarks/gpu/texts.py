"""Every strategy's text on a device, with the built-in model, against plain decoding and transformers' ``generate``."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.parts import Findings, Report
from benchmarks.prompts import prompt_ids
from specdec import DraftModelProposer, Generator, Proposer, Result, demo

STRATEGIES = (
    "prompt_lookup", "lookahead:N=5,W=15,G=15", "auto", "jacobi", "suffix", "token_recycling",
    "prompt_lookup+suffix",
)  # fmt: skip
HEADS = {f"{name}eagle3": f"{name}eagle3:head={demo.head_folder()}" for name in ("", "auto+")}
WAYS: Mapping[str, Mapping[str, str]] = {
    "static": {"backend": "static", "numerics": "fast"},
    "split": {"mask": "split:least_prefix=16"},
    "auto": {},
}
NUM_TOKENS, NUM_PROMPTS, BATCH = 24, 3, 8
SEED = 5


def texts(dtype: str, device: str) -> Callable[[Report, Findings], None]:
    """Return the part that compares the texts in a dtype."""

    def run(report: Report, found: Findings) -> None:
        model, tokenizer = demo.load(dtype)
        drafter = demo.load_drafter(dtype).to(device)
        cases = Cases(model.to(device), tokenizer, drafter, prompt_ids(tokenizer))
        report.attempt(found, "transformers", partial(cases.generate, NUM_TOKENS))
        report.group(found.setdefault("fast", {}), partial(_under, cases=cases, numerics="fast"))
        for name, options in WAYS.items():
            report.group(found.setdefault(name, {}), partial(_way, cases=cases, options=options))
        report.group(found.setdefault("exact", {}), partial(_under, cases=cases, numerics="exact"))

    return run


class Cases:
    """The built-in model, its drafter and its prompts."""

    def __init__(self, model: Any, tokenizer: Any, drafter: Any, ids: list[list[int]]) -> None:
        self.model, self.tokenizer, self.drafter, self.ids = model, tokenizer, drafter, ids
        self.prompts = [ids[index * len(ids) // NUM_PROMPTS] for index in range(NUM_PROMPTS)]
        self.own: list[tuple[int, ...]] = []

    def generate(self, num_tokens: int) -> int:
        """Decode the prompts by transformers."""
        self.own = [generated(self.model, prompt, num_tokens) for prompt in self.prompts]
        return len(self.own)

    def strategies(self) -> dict[str, Proposer | str]:
        """Strategies by name; draft models too."""
        return {
            **{name: name for name in STRATEGIES},
            "draft model": DraftModelProposer(model=self.drafter, num_tokens=4),
            "early exit": DraftModelProposer(layers=2, num_tokens=3),
            **HEADS,
        }


def generated(model: Any, prompt: list[int], num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
    """The text of transformers' greedy ``generate``, which may go on after an end of text."""
    ids = torch.tensor([prompt], device=model.device)
    model.generation_config.eos_token_id = None
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
    return tuple(output[0, len(prompt) :].tolist())


@contextmanager
def opened(found: Findings, cases: Cases, **options: Any) -> Iterator[Generator]:
    """A generator, with notes on how it drives the model."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        generator = Generator(cases.model, cases.tokenizer, **{"proposer": "autoregressive", **options})
    with generator:
        found["generator"] = {
            "repr": repr(generator),
            "load seconds": round(time.perf_counter() - began, 2),
            "numerics": str(generator.numerics),
            "bit exact": generator.numerics.is_bit_exact,
            "inexact": generator.numerics.inexact,
            "noise": generator.numerics.noise,
            "weights": str(generator.weights),
            "shapes": str(generator.shapes),
            "warnings": [str(each.message) for each in warned],
        }
        yield generator


def _decoded(generator: Generator, ids: Any, temperature: float, **options: Any) -> list[Result]:
    settings: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "temperature": temperature, "seed": SEED}
    return [generator.generate(prompt, eos_token_id=[], **settings, **options) for prompt in ids]


def agreement(results: Sequence[Result], expected: Sequence[Result]) -> str:
    """How many texts are equal, and where the others differ first: at a numeric tie or not."""
    remarks = []
    for number, (result, plain) in enumerate(zip(results, expected, strict=True)):
        if result.error is not None:
            remarks.append(f"text {number} failed: {result.error}")
        elif (place := _first_difference(result.token_ids, plain.token_ids)) is not None:
            is_tie = place in {*result.ties, *plain.ties}
            remarks.append(f"text {number} differs at {place}: {'a numeric tie' if is_tie else 'NOT a flagged tie'}")
    return "; ".join([f"{len(results) - len(remarks)} of {len(results)} equal", *remarks])


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if tuple(one) == tuple(other):
        return None
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _under(report: Report, found: Findings, cases: Cases, numerics: str) -> None:
    """All strategies under one kind of numerics, alone, in a batch, in a context and as a stream."""
    with opened(found, cases, backend="hf", numerics=numerics) as generator:  # whose recordings are shown
        plain = [_decoded(generator, cases.prompts, temperature) for temperature in (0.0, 1.0)]
        found["notes"] = plain[0][0].notes
        same = sum(result.token_ids == text for result, text in zip(plain[0], cases.own, strict=False))
        found["plain, as transformers"] = f"{same} of {len(cases.own)} equal"
        for name, proposer in cases.strategies().items():
            report.attempt(found, name, partial(_of_strategy, generator, cases, proposer, plain))
        report.attempt(found, "ragged batch", partial(_of_batch, generator, cases))
        report.attempt(found, "context", partial(_of_context, generator, cases))
        report.attempt(found, "stream", partial(_of_stream, generator, cases, plain[0][0]))
        report.attempt(found, "recordings", partial(recordings, generator))
    for rule in ("rejection", "traversal"):
        report.attempt(found, rule, partial(_of_rule, cases, rule, numerics))


def _way(report: Report, found: Findings, cases: Cases, options: Mapping[str, str]) -> None:
    """Some strategies by another mask or backend."""
    with opened(found, cases, **options) as generator:
        plain = [_decoded(generator, cases.prompts, temperature) for temperature in (0.0, 1.0)]
        found["notes"] = plain[0][0].notes
        for name, proposer in {**{name: name for name in STRATEGIES[:4]}, **HEADS}.items():
            report.attempt(found, name, partial(_of_strategy, generator, cases, proposer, plain))
        report.attempt(found, "ragged batch", partial(_of_batch, generator, cases))


def _of_strategy(generator: Generator, cases: Cases, proposer: Proposer | str, plain: list[list[Result]]) -> Findings:
    results = [_decoded(generator, cases.prompts, float(index), proposer=proposer) for index in (0, 1)]
    greedy = results[0]
    return {
        "greedy": agreement(greedy, plain[0]),
        "temperature 1": agreement(results[1], plain[1]),
        "tokens per step": round(sum(r.stats.num_tokens for r in greedy) / sum(r.stats.steps for r in greedy), 2),
    }


def _of_batch(generator: Generator, cases: Cases) -> Findings:
    """Rows of unlike length, decoded together and alone."""
    prompts = [prompt[: 3 + 37 * place] for place, prompt in enumerate(cases.ids[:BATCH])]
    prompts[-1] = [token for prompt in cases.ids for token in prompt][:700]  # several chunks
    settings: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "seed": SEED, "eos_token_id": []}
    found = {}
    for proposer in ("autoregressive", "auto"):
        alone = _decoded(generator, prompts, 0.0, proposer=proposer)
        together = generator.generate(prompts, proposer=proposer, **settings)
        found[proposer] = agreement(together, alone)
    return found


def _of_context(generator: Generator, cases: Cases) -> str:
    """Two turns with cached keys and values, against the same without."""
    first = cases.prompts[0]
    settings: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "eos_token_id": []}
    with generator.context() as context:
        before = generator.generate(first, context=context, proposer="auto", **settings)
        second = [*first, *before.token_ids, *cases.ids[-1][:20]]
        cached = generator.generate(second, context=context, proposer="auto", **settings)
    anew = generator.generate(second, proposer="auto", **settings)
    return f"{agreement([cached], [anew])}, {cached.stats.num_reused} tokens reused"


def _of_stream(generator: Generator, cases: Cases, plain: Result) -> bool:
    chunks = generator.stream(cases.prompts[0], proposer="auto", max_new_tokens=NUM_TOKENS, eos_token_id=[])
    return tuple(token for chunk in chunks for token in chunk.token_ids) == plain.token_ids


def _of_rule(cases: Cases, rule: str, numerics: str) -> str:
    with Generator(
        cases.model,
        cases.tokenizer,
        proposer=DraftModelProposer(model=cases.drafter, num_tokens=4, width=2),
        verifier=rule,
        numerics=numerics,  # type: ignore[arg-type]  # one of its modes
    ) as generator:
        results = _decoded(generator, cases.prompts, 1.0)
    for result in results:
        if result.error is not None:
            raise result.error
    return f"{sum(r.stats.num_tokens for r in results) / sum(r.stats.steps for r in results):.2f} tokens per step"


def recordings(generator: Generator) -> list[str]:
    """How each kind of pass is run by now: by a recording, or by the model's own forward, and why."""
    kinds = generator._binding.target.backend._replay._kinds  # type: ignore[attr-defined]  # no other way to see it
    return [
        f"(one row, one node, masks) {key[1]}, (attention, masks) {key[0]}: {kind.num_uses} passes, "
        + ("recorded" if kind.program is not None and not kind.fault else kind.fault or "not recorded yet")
        for key, kind in kinds.items()
    ]
