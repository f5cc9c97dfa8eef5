"""specdec itself.

    specdec:prompt_lookup:max_ngram=2,num_tokens=10      a proposer's string, in fast numerics, as the peers have
    specdec:lookahead:N=5,W=7,G=7+numerics=exact         after a plus sign: the ``Generator``'s options
    specdec                                              plain decoding

``demo_drafter`` in it stands for the folder of the built-in model's drafter.
"""

from typing import Any

from benchmarks.peers import models
from benchmarks.peers.worker import Arguments, Decode, Decoded, options, serve
from specdec import Generator


def load(arguments: Arguments) -> Any:
    return models.load(arguments.model, arguments.dtype)


def prepare(model: Any, arguments: Arguments) -> Decode:
    proposer, _, rest = models.with_drafter(arguments.method).partition("+")
    chosen = {"numerics": "fast", **options(rest.replace("+", ","))}
    generator = Generator(model, proposer=proposer or "autoregressive", **chosen)

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        result = generator.generate(prompt, max_new_tokens=max_new_tokens, seed=0, eos_token_id=())
        return Decoded(list(result.token_ids), result.stats.steps, dict(result.stats.seconds))

    return decode


if __name__ == "__main__":
    serve(load, prepare, ["transformers", "specdec"])
