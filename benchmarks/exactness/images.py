"""Images, audio and encoder-decoders: is each strategy's text that of transformers?

    python -m benchmarks images [--families llava qwen2_vl …] [--num-texts 40] [--max-new-tokens 48]

Small random models of each family decode random prompts with up to three images or recordings, or an encoder's input,
in fast and exact numerics: in batches of eight that prompts of several lengths join and leave, and a quarter of them
alone. Greedy texts are compared with transformers' ``generate``, sampled texts with plain decoding's. The exit code is
1 if one differs.
"""

import argparse
import random
import sys
import time
import warnings
from functools import partial
from typing import Any

import torch
from transformers.generation import GenerationMixin

from benchmarks.machine import facts
from specdec import Generator, ModelError
from specdec.inputs.processor import ProcessorOutput
from tests.support import encoder_decoders, more_encoder_decoders, multimodal

NO_ENDS: dict[str, Any] = {"eos_token_id": None, "forced_eos_token_id": None}
STRATEGIES = ["autoregressive", "prompt_lookup:num_matches=2", "lookahead:N=3,W=3,G=3", "suffix", "auto"]


MORE = more_encoder_decoders.TREES | more_encoder_decoders.CHAINS
FAMILIES = [*multimodal.FAMILIES, *encoder_decoders.MODELS, *MORE]


def made(name: str) -> Any:
    """Return a family's model."""
    if name in multimodal.FAMILIES:
        return multimodal.make(name)
    return (more_encoder_decoders if name in MORE else encoder_decoders).make(name)


def prompts_of(name: str, model: Any, count: int) -> list[multimodal.Inputs]:
    """Random prompts of 8 to 40 tokens of text and up to three images or recordings, or an encoder's input."""
    rng = random.Random(11)
    if name in MORE:
        return [more_encoder_decoders.encoder_inputs(name, model, number) for number in range(count)]
    if name in encoder_decoders.MODELS:
        sizes = [rng.choice([8, 13, 24, 40]) for _ in range(count)]
        return [encoder_decoders.encoder_inputs(name, model, number, size) for number, size in enumerate(sizes)]
    return [
        multimodal.prompt(name, rng.randrange(count), rng.randrange(4), rng.choice([8, 13, 24, 40]))
        for _ in range(count)
    ]


def greedy_texts(model: Any, prompts: list[multimodal.Inputs], num_tokens: int) -> list[list[int]]:
    """Return what ``generate`` writes."""
    is_whisper = model.config.model_type == "whisper"  # whose own one returns the new tokens alone
    generate = partial(GenerationMixin.generate, model) if is_whisper else model.generate
    settings = {"max_new_tokens": num_tokens, "do_sample": False, "num_beams": 1, "pad_token_id": 0, **NO_ENDS}
    return [generate(**each, **settings)[0, -num_tokens:].tolist() for each in prompts]


def compare(name: str, num_texts: int, num_tokens: int) -> tuple[int, int]:
    """Print a table row for each numerics on one family; return the numbers of texts compared, and that differ."""
    model = made(name)
    prompts = prompts_of(name, model, num_texts)
    greedy, compared, differing = greedy_texts(model, prompts, num_tokens), 0, 0
    for numerics in ("fast", "exact"):
        began, num_compared, found, steps, tokens = time.perf_counter(), 0, 0, 0, 0
        try:
            generator = Generator(model, proposer="autoregressive", numerics=numerics, max_batch_size=8)
        except ModelError:
            print(f"| {name} | {numerics} | unavailable | | | |", flush=True)
            continue
        sampled: list[Any] = []
        with generator:
            for strategy in STRATEGIES:
                given = [each for prompt in prompts for each in ProcessorOutput(prompt).prompts()]
                settings: dict[str, Any] = {"proposer": strategy, "max_new_tokens": num_tokens, **NO_ENDS}
                results = generator.generate(given, **settings)
                alone = [generator.generate([one], **settings)[0] for one in given[: len(given) // 4]]
                each = [{"max_new_tokens": num_tokens - number % 4 * num_tokens // 6} for number in range(len(given))]
                drawn = generator.generate(given, **settings, temperature=1.0, seed=3, each=each)
                texts = [list(result.token_ids) for result in (*results, *alone, *drawn)]
                sampled = sampled or texts[-len(drawn) :]
                expected = [*greedy, *greedy[: len(alone)], *sampled]
                found += sum(a != b for a, b in zip(texts, expected, strict=True))
                num_compared += len(texts)
                steps += sum(result.stats.steps for result in results)
                tokens += sum(result.stats.num_tokens for result in results)
        seconds = time.perf_counter() - began
        print(f"| {name} | {numerics} | {num_compared} | {found} | {tokens / steps:.2f} | {seconds:.0f} |", flush=True)
        compared, differing = compared + num_compared, differing + found
    return compared, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--num-texts", type=int, default=40)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(facts())
    print("| family | numerics | texts | differing | tokens per step | seconds |\n|---|---|---|---|---|---|")
    found = [compare(name, arguments.num_texts, arguments.max_new_tokens) for name in arguments.families]
    compared, differing = (sum(each) for each in zip(*found, strict=True))
    print(f"\n{compared} texts compared, {differing} differing")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
