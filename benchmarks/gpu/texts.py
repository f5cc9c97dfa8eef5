"""Every strategy's text on a device, with the built-in model, against plain decoding, alone and in a batch."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.parts import Findings, Report
from benchmarks.prompts import prompt_ids
from specdec import Generator, Result, demo

STRATEGIES = {
    **{name: name for name in ("auto", "lookahead:N=5,W=15,G=15", "suffix", "prompt_lookup")},
    **{f"{name}eagle3": f"{name}eagle3:head={demo.head_folder()}" for name in ("", "auto+")},
}
WAYS: Mapping[str, Mapping[str, str]] = {
    "auto": {},
    "fused": {"backend": "fused"},
    "static": {"backend": "static"},
    "unsplit": {"backend": "static", "mask": "slot_table:products=unsplit"},
    "own products": {"backend": "static", "mask": "slot_table:products=own"},
    "split": {"mask": "split:least_prefix=16"},
    "hf": {"backend": "hf"},
}


def texts(
    dtype: str, device: str, num_prompts: int, num_tokens: int, longest: int
) -> Callable[[Report, Findings], None]:
    """Return the part that compares the texts in a dtype; one prompt of a batch has ``longest`` tokens."""

    def run(report: Report, found: Findings) -> None:
        model, tokenizer = demo.load(dtype)
        cases = Cases(model.to(device), tokenizer, num_prompts, num_tokens, longest)
        for name, options in WAYS.items():
            report.group(found.setdefault(name, {}), partial(_of_way, cases=cases, options=options))

    return run


class Cases:
    """The built-in model and prompts; the last one is long in batches."""

    def __init__(self, model: Any, tokenizer: Any, num_prompts: int, num_tokens: int, longest: int) -> None:
        ids = prompt_ids(tokenizer)
        self.model, self.tokenizer, self.num_tokens = model, tokenizer, num_tokens
        self.alone = [ids[index * len(ids) // num_prompts] for index in range(num_prompts)]
        self.ragged = [prompt[: 3 + 37 * place] for place, prompt in enumerate(self.alone)]
        self.ragged[-1] = [token for prompt in ids for token in prompt][:longest]


def generated(model: Any, prompt: list[int], num_tokens: int, **options: Any) -> tuple[int, ...]:
    """The text of transformers' greedy ``generate``, which may go on after an end of text."""
    ids = torch.tensor([prompt], device=model.device)
    model.generation_config.eos_token_id = None
    own = {"attention_mask": torch.ones_like(ids), "max_new_tokens": num_tokens, "do_sample": False}
    output = model.generate(ids, **own, **options)
    return tuple(output[0, len(prompt) :].tolist())


def _of_way(report: Report, found: Findings, cases: Cases, options: Mapping[str, str]) -> None:
    """The texts of all strategies by one backend and mask, greedily and at temperature 1."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        generator = Generator(cases.model, cases.tokenizer, **{"proposer": "autoregressive", **options})  # type: ignore[arg-type]  # strings
    with generator:
        found["generator"] = f"{generator!r}; {generator.numerics}; {generator.weights}"
        found["warnings"] = [str(each.message) for each in warned]
        decode = partial(_decoded, generator, cases.num_tokens)
        plain = {temperature: decode(cases.alone, temperature) for temperature in (0.0, 1.0)}
        of_transformers = [generated(cases.model, prompt, cases.num_tokens) for prompt in cases.alone]
        same = sum(result.token_ids == text for result, text in zip(plain[0.0], of_transformers, strict=True))
        found["plain, as transformers"] = f"{same} of {len(of_transformers)} equal"
        ragged = decode(cases.ragged, 0.0)
        for name, proposer in STRATEGIES.items():
            report.attempt(found, name, partial(_of_strategy, generator, cases, proposer, plain, ragged))


def _decoded(
    generator: Generator, num_tokens: int, prompts: Sequence[list[int]], temperature: float, **options: Any
) -> list[Result]:
    settings: dict[str, Any] = {"max_new_tokens": num_tokens, "temperature": temperature, "seed": 5, "eos_token_id": []}
    return [generator.generate(prompt, **settings, **options) for prompt in prompts]


def _of_strategy(
    generator: Generator, cases: Cases, proposer: str, plain: Mapping[float, list[Result]], ragged: list[Result]
) -> Findings:
    decode = partial(_decoded, generator, cases.num_tokens)
    found = {t: decode(cases.alone, t, proposer=proposer) for t in plain}
    together = generator.generate(cases.ragged, proposer=proposer, max_new_tokens=cases.num_tokens, eos_token_id=[])
    greedy = found[0.0]
    return {
        "greedy": agreement(greedy, plain[0.0]),
        "temperature 1": agreement(found[1.0], plain[1.0]),
        "in a batch": agreement(together, ragged),
        "tokens per step": round(sum(r.stats.num_tokens for r in greedy) / sum(r.stats.steps for r in greedy), 2),
    }


def agreement(results: Sequence[Result], expected: Sequence[Result]) -> str:
    """How many texts are equal, and where the others differ first: at a numeric tie or not."""
    remarks = []
    for number, (result, plain) in enumerate(zip(results, expected, strict=True)):
        if result.error is not None:
            remarks.append(f"text {number} failed: {result.error}")
        elif result.token_ids != plain.token_ids:
            pairs = zip(result.token_ids, plain.token_ids, strict=False)
            place = next((at for at, (a, b) in enumerate(pairs) if a != b), len(plain.token_ids))
            is_tie = place in {*result.ties, *plain.ties}
            remarks.append(f"text {number} differs at {place}: {'a numeric tie' if is_tie else 'NOT a flagged tie'}")
    return "; ".join([f"{len(results) - len(remarks)} of {len(results)} equal", *remarks])
