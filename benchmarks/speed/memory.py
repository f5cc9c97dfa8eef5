"""Memory: the peak of packing and of a generation over the loaded model, and growth over many requests.

    python -m benchmarks memory [--model FOLDER] [--dtype bfloat16] [--prompt-tokens 4096] [--requests 200]

Linux only: the peak is the process's high-water mark, reset once the model is loaded and has decoded a little.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.machine import facts
from benchmarks.models import add_model_options, load_model, millions
from benchmarks.peers.memory import Memory, resident_bytes
from benchmarks.speed.overhead import text_of
from specdec import Generator

MIB = 2**20


def cache_mib(model: Any, num_tokens: int) -> float:
    """MiB of keys and values of ``num_tokens`` tokens."""
    config = model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * size * num_tokens
    return numbers * model.dtype.itemsize / MIB


def packing(model: Any) -> str:
    """Print the memory of packing a model's weights: at the peak, afterwards, and after closing."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()  # a file that is mapped stays so while anything of it is in use
    memory, before = Memory(model), resident_bytes("VmRSS")
    generator = Generator(model, proposer="autoregressive", numerics="fast")
    peak, held, said = memory.peak_bytes() or 0, resident_bytes("VmRSS") - before, str(generator.weights)
    generator.close()
    left = resident_bytes("VmRSS") - before
    return (
        f"{said}: {peak / MIB:.0f} MiB over the loaded model at the most, {held / MIB:.0f} once made, "
        f"{left / MIB:.0f} when closed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--numerics", nargs="+", default=["fast", "exact"])
    parser.add_argument("--proposer", default="prompt_lookup")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    model, tokenizer = load_model(arguments)
    prompt = text_of(tokenizer, arguments.prompt_tokens)
    print(f"{facts()}, {arguments.dtype}, {millions(model)}, {arguments.proposer}\n")
    print(f"{packing(model)}\n")
    print("| numerics | prompt + new | cache MiB | peak over the loaded model MiB | allowed: cache + 10 % + 64 MiB |")
    print("|---|---|---|---|---|")
    for numerics in arguments.numerics:
        generator = Generator(model, proposer=arguments.proposer, numerics=numerics)
        generator.generate(prompt[:64], max_new_tokens=4)
        before = resident_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        generator.generate(prompt, max_new_tokens=arguments.max_new_tokens, eos_token_id=())
        cache = cache_mib(model, len(prompt) + arguments.max_new_tokens)
        peak = (resident_bytes("VmHWM") - before) / MIB
        print(
            f"| {numerics} | {len(prompt)} + {arguments.max_new_tokens} | {cache:.1f} | {peak:.1f} "
            f"| {1.1 * cache + 64:.1f} |"
        )
        held = []
        for index in range(arguments.requests):
            generator.generate(prompt[index % 64 : 96 + index % 128], max_new_tokens=8, eos_token_id=())
            held.append(resident_bytes("VmRSS") / MIB)
        if held:
            tenth = len(held) // 10
            print(f"\n{numerics}: after {tenth} requests {held[tenth]:.1f} MiB, after {len(held)} {held[-1]:.1f} MiB\n")


if __name__ == "__main__":
    main()
