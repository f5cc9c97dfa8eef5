"""specdec itself.

    specdec:prompt_lookup:max_ngram=2,num_tokens=10      a proposer's string, in fast numerics like the peers
    specdec:lookahead:N=5,W=7,G=7+numerics=exact         options of ``Generator`` follow a plus sign
    specdec:auto+eagle3:head=FOLDER+numerics=exact       as do further strategies
    specdec:auto+schema=order.json                       texts under a JSON schema
    specdec:auto+backend=openvino:weights=int8           on OpenVINO, with rounded weights
    specdec                                              plain decoding

Prompts repeat, so strategies forget what they have learnt when a prompt comes again: before each round over them. On
OpenVINO the model is the checkpoint's folder. As with OpenVINO GenAI, one pass is made before memory is counted, since
weights are packed in the first passes. ``demo_drafter`` stands for the folder of the built-in model's drafter.
"""

from typing import Any

from benchmarks.peers import models
from benchmarks.peers.worker import Arguments, Decode, Decoded, schema_of, serve, value_of
from specdec import Generator
from specdec.constraints import JsonSchema

_ROWS = 64  # of the first pass


def load(arguments: Arguments) -> Any:
    if not chosen_of(arguments)[1].get("backend", "").startswith("openvino"):
        return models.load(arguments.model, arguments.dtype)
    generator = _generator(str(arguments.model), arguments)
    if str(generator.shapes.dtype) != f"torch.{arguments.dtype}":
        raise SystemExit(f"{arguments.model} is in {generator.shapes.dtype}, not {arguments.dtype}")
    generator.generate([0] * _ROWS, max_new_tokens=2, eos_token_id=())
    return generator


def chosen_of(arguments: Arguments) -> tuple[str, dict[str, Any], Any]:
    """The proposer, the generator's options and the schema."""
    parts = models.with_drafter(arguments.method).split("+")
    given = [part for part in parts if ":" not in part.partition("=")[0] and "=" in part]
    chosen = {name: value_of(text) for name, _, text in (part.partition("=") for part in given)}
    schema = schema_of(chosen)
    proposer = "+".join(part for part in parts if part not in given)
    return proposer or "autoregressive", {"numerics": "fast", **chosen}, schema


def _generator(model: Any, arguments: Arguments) -> Generator:
    proposer, chosen, _ = chosen_of(arguments)
    return Generator(model, proposer=proposer, **chosen)


def prepare(model: Any, arguments: Arguments) -> Decode:
    generator = model if isinstance(model, Generator) else _generator(model, arguments)

    schema = chosen_of(arguments)[2]
    ending = {"eos_token_id": tuple(arguments.eos)} if schema is None else {"constraint": JsonSchema(schema)}
    seen = set[tuple[int, ...]]()

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        if tuple(prompt) in seen:
            generator.forget()
            seen.clear()
        seen.add(tuple(prompt))
        result = generator.generate(prompt, max_new_tokens=max_new_tokens, seed=0, **ending)
        return Decoded(list(result.token_ids), result.stats.steps, dict(result.stats.seconds))

    return decode


if __name__ == "__main__":
    serve(load, prepare, ["transformers", "specdec"])
