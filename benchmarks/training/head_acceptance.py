"""How many tokens per step does a trained head bring, alone and merged, at fixed numbers of draft tokens?

Alone, the target's greedy answers are replayed with the head's chains and trees. Merged, the head drafts along with
suffixes and recycled predictions in whole texts, and each step has as many draft tokens as are asked for, whatever they
cost. Tokens and steps are counted and nothing is timed; texts are compared with plain decoding's. The pass over the
prompt counts as a step.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.prompts import EncodedPrompt, add_prompt_options, encoded_prompts
from benchmarks.training.head_run import answer_of, on_prompts
from specdec import Generator
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.target import TargetStates
from specdec.models.loading import load_pretrained
from specdec.strategies.auto.growth import Growth
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.auto.proposer import AutoProposer
from specdec.strategies.auto.sizer import DraftSizer
from specdec.strategies.base import Engine, Proposer
from specdec.strategies.host import Host


class FixedSizer(DraftSizer):
    """Verifies the same number of draft tokens in each step."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def sizes(self, growths: Sequence[Growth]) -> list[int]:
        for growth in growths:
            while len(growth) <= self._num_draft_tokens and growth.next_probability > 0.0:
                growth.take()
        return [len(growth) for growth in growths]


class FixedMerge(MergedProposer):
    """A merge whose drafts have ``num_nodes`` tokens, and whose passes always run."""

    clock: bool = False

    def bind(self, host: Host) -> Engine:
        return self.bind_with(host, FixedSizer(self.num_nodes))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks head_acceptance", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", required=True, help="the target: a folder, a hub name, demo or smollm2")
    parser.add_argument("--head", type=Path, required=True, help="folder of an EAGLE-3 head")
    parser.add_argument("--dtype", default="float32", help="of the target")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 16], help="draft tokens of merged drafts")
    parser.add_argument("--out", type=Path, help="file for all figures, as JSON")
    add_prompt_options(parser)
    arguments = parser.parse_args()
    model, tokenizer = load_pretrained(arguments.model, dtype=arguments.dtype)
    prompts = encoded_prompts(arguments, tokenizer)
    decoding = Decoding(model, tokenizer, prompts, arguments.max_new_tokens)
    plain = decoding.texts("autoregressive")
    print(f"{len(prompts)} prompts, {sum(map(len, plain))} tokens")
    alone = on_head(model, arguments.head, prompts, plain)
    print("alone:", ", ".join(f"{name} {found:.2f}" for name, found in alone["tokens_per_step"].items()))
    print("acceptance by depth, given all before:", *(f"{share:.2f}" for share in alone["acceptance_given_all_before"]))
    merges = {
        f"{name}, {num_nodes} draft tokens": decoding.tokens_per_step(merge(head, num_nodes), plain)
        for num_nodes in arguments.nodes
        for name, head in (("suffixes and recycling", None), ("with the head", arguments.head))
    }
    print("\n".join(f"{name}: {found['tokens_per_step']:.2f} ({found})" for name, found in merges.items()))
    if arguments.out:
        arguments.out.write_text(json.dumps({"alone": alone, "merged": merges}, indent=1) + "\n", encoding="utf-8")


def merge(head: Path | None, num_nodes: int) -> FixedMerge:
    further = [] if head is None else [Eagle3Proposer(head=head)]
    return FixedMerge(proposers=AutoProposer().merged(further).proposers, num_nodes=num_nodes)


class Decoding:
    """Decodes the prompts greedily, one by one, in fast numerics."""

    def __init__(self, model: Any, tokenizer: Any, prompts: Sequence[EncodedPrompt], most: int) -> None:
        self._model, self._tokenizer, self._prompts, self._most = model, tokenizer, prompts, most

    def texts(self, proposer: str | Proposer) -> list[Sequence[int]]:
        return [result.token_ids for result in self._results(proposer)]

    def tokens_per_step(self, proposer: Proposer, plain: Sequence[Sequence[int]]) -> dict[str, float]:
        """Tokens and draft tokens per step over all prompts, and the number of texts that aren't plain decoding's."""
        results = self._results(proposer)
        steps = sum(result.stats.steps for result in results)
        return {
            "tokens_per_step": sum(len(result.token_ids) for result in results) / steps,
            "draft_tokens_per_step": sum(result.stats.num_nodes for result in results) / steps - 1,  # without the root
            "steps": steps,
            "texts_that_differ": sum(result.token_ids != text for result, text in zip(results, plain, strict=True)),
        }

    def _results(self, proposer: str | Proposer) -> list[Any]:
        with Generator(self._model, self._tokenizer, proposer=proposer, backend="hf", numerics="fast") as generator:
            return [generator.generate(prompt.ids, max_new_tokens=self._most) for prompt in self._prompts]


@torch.no_grad()
def on_head(
    model: Any, folder: Path, prompts: Sequence[EncodedPrompt], texts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The head's figures alone."""
    training = Eagle3Training.from_folder(model, folder)
    target = TargetStates(model, training.layer_ids)
    pairs = zip(prompts, texts, strict=True)
    answers = [answer_of(each.category, each.ids, text, training, target) for each, text in pairs]
    return on_prompts(training, answers)


if __name__ == "__main__":
    main()
