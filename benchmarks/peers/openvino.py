"""OpenVINO GenAI on a CPU, one request at a time.

    openvino                                            plain decoding
    openvino:prompt_lookup=5,max_ngram_size=3           prompt lookup: tokens per draft, longest n-gram (3)
    openvino:precision=default                          passes and cache in OpenVINO's own choice of precision
    openvino:weights=int8                               weights rounded by nncf as specdec's ``weights=int8``, or int4

Passes, keys and values have the model's dtype. By default OpenVINO would compute a float32 model in bfloat16 if the
processor supports it, and store keys and values in float16. An option in capitals is a property of the pipeline, such
as ``openvino:ATTENTION_BACKEND=SDPA`` (default: paged attention). The prefix cache is off, since prompts repeat.

The first start converts the checkpoint into ``build/openvino/``. Weights that aren't rounded keep their dtype. They are
packed in the first pass, so one pass is made before memory is counted.
"""

import hashlib
import multiprocessing
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import Arguments, Decode, Decoded, serve

_CONVERTED = Path(__file__).parents[2] / "build" / "openvino"
_PACKAGES = ["openvino", "openvino-genai", "optimum-intel"]
_OPTIONS = {"prompt_lookup", "max_ngram_size", "precision", "weights"}
_MODES = {"model": "", "int8": "int8_asym", "int4": "int4_sym"}  # nncf's, by ``weights``
_ROWS = 64  # of the first pass: weights are packed for few rows and for many
_UNLIMITED = 2**31  # tokens in a pass, as the pipeline has it where no scheduler is given


def load(arguments: Arguments) -> Any:
    import openvino_genai

    given = arguments.options
    properties: dict[str, Any] = {name: value for name, value in given.items() if name.isupper()}
    unknown = given.keys() - properties.keys() - _OPTIONS
    precision, weights = given.get("precision", "model"), given.get("weights", "model")
    if unknown or precision not in ("model", "default") or weights not in _MODES:
        wrong = ", ".join(sorted(unknown)) or f"precision={precision}, weights={weights}"
        raise SystemExit(f"no such option: {wrong}")
    if precision == "model":
        element = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[arguments.dtype]
        properties = {"INFERENCE_PRECISION_HINT": element, "KV_CACHE_PRECISION": element, **properties}
    if given.get("prompt_lookup"):
        properties["prompt_lookup"] = True
    if properties.get("ATTENTION_BACKEND", "PA") == "PA":
        properties["scheduler_config"] = scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = _UNLIMITED
    model = openvino_genai.LLMPipeline(
        converted(arguments.model, arguments.dtype, _MODES[weights]),
        "CPU",
        INFERENCE_NUM_THREADS=arguments.threads,
        ENABLE_CPU_PINNING=False,  # no contender's threads are bound to cores
        **properties,
    )
    prepare(model, arguments)([0] * _ROWS, 2)
    return model


def prepare(model: Any, arguments: Arguments) -> Decode:
    import numpy
    import openvino
    import openvino_genai

    given = arguments.options
    lookup = {}
    if given.get("prompt_lookup"):
        lookup = {"num_assistant_tokens": given["prompt_lookup"], "max_ngram_size": given.get("max_ngram_size", 3)}

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        ids = numpy.array([prompt])
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        greedy = openvino_genai.GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            ignore_eos=not arguments.eos,
            stop_token_ids=set(arguments.eos),
            **lookup,
        )
        output = model.generate(inputs, greedy)
        return Decoded(list(output.tokens[0]), len(output.perf_metrics.raw_metrics.token_infer_durations))

    return decode


def converted(checkpoint: Path, dtype: str, mode: str = "") -> Path:
    """The folder of a checkpoint's conversion, made if there is none for these files and versions.

    ``mode``: of nncf, which rounds the weights; "" leaves them in the checkpoint's dtype.
    """
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.iterdir())
    packages = [*_PACKAGES, "nncf"] if mode else _PACKAGES
    known = repr((checkpoint, files, dtype, [version(name) for name in packages], *filter(None, [mode])))
    folder = _CONVERTED / f"{checkpoint.name}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
    if not folder.exists():
        _CONVERTED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CONVERTED) as unfinished:
            made = Path(unfinished, "model")
            converter = multiprocessing.get_context("fork").Process(
                target=_convert, args=(checkpoint, dtype, mode, made)
            )
            converter.start()  # a process of its own, whose memory goes with it
            converter.join()
            if converter.exitcode:
                raise SystemExit("the checkpoint can't be converted")
            made.rename(folder)
    return folder


def _convert(checkpoint: Path, dtype: str, mode: str, folder: Path) -> None:
    from optimum.intel import OVModelForCausalLM

    model = OVModelForCausalLM.from_pretrained(
        checkpoint, export=True, compile=False, load_in_8bit=False, torch_dtype=dtype
    )
    if mode:
        import nncf
        from nncf.quantization.advanced_parameters import AdvancedCompressionParameters, GroupSizeFallbackMode

        fallback = AdvancedCompressionParameters(group_size_fallback_mode=GroupSizeFallbackMode.ADJUST)
        nncf.compress_weights(model.model, mode=nncf.CompressWeightsMode(mode), advanced_parameters=fallback)
    model.save_pretrained(folder)


if __name__ == "__main__":
    serve(load, prepare, ["transformers", *_PACKAGES])
