"""OpenVINO GenAI on a CPU, one request at a time.

    openvino                                            plain decoding
    openvino:prompt_lookup=5,max_ngram_size=3           prompt lookup: tokens per draft, longest n-gram (3)
    openvino:precision=default                          passes and cache in OpenVINO's own choice of precision
    openvino:weights=int8                               weights rounded by nncf as specdec's ``weights=int8``, or int4
    openvino:head=FOLDER,num_assistant_tokens=3         drafts by a trained head (EAGLE-3), tokens per draft
    openvino:head=FOLDER,num_assistant_tokens=8,tree_depth=3,branching_factor=4    trees of that many drafted tokens

Passes, keys and values have the model's dtype. By default OpenVINO would compute a float32 model in bfloat16 if the
processor supports it, and store keys and values in float16. An option in capitals is a property of the pipeline, such
as ``openvino:ATTENTION_BACKEND=SDPA`` (default: paged attention). The prefix cache is off, since prompts repeat.

The first start converts the checkpoint, and the head, into ``build/openvino/``. Weights that aren't rounded, and the
head's, keep their dtype. They are packed in the first pass, so one pass is made before memory is counted.
"""

import hashlib
import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import Arguments, Decode, Decoded, serve

_CONVERTED = Path(__file__).parents[2] / "build" / "openvino"
_PACKAGES = ["openvino", "openvino-genai", "optimum-intel"]
_TREE = ("num_assistant_tokens", "tree_depth", "branching_factor")  # of a head's drafts
_OPTIONS = {"prompt_lookup", "max_ngram_size", "precision", "weights", "head", *_TREE}
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
    threads = {"INFERENCE_NUM_THREADS": arguments.threads, "ENABLE_CPU_PINNING": False}  # no contender's are bound
    if "head" in given:
        precisions = {name: value for name, value in properties.items() if name.isupper()}
        head = converted_head(Path(given["head"]), arguments.model, arguments.dtype)
        properties["draft_model"] = openvino_genai.draft_model(head, "CPU", **threads, **precisions)
    folder = converted(arguments.model, arguments.dtype, _MODES[weights])
    model = openvino_genai.LLMPipeline(folder, "CPU", **threads, **properties)
    prepare(model, arguments)([0] * _ROWS, 2)
    return model


def prepare(model: Any, arguments: Arguments) -> Decode:
    import numpy
    import openvino
    import openvino_genai

    given = arguments.options
    drafts = {name: given[name] for name in _TREE if name in given}
    if given.get("prompt_lookup"):
        drafts = {"num_assistant_tokens": given["prompt_lookup"], "max_ngram_size": given.get("max_ngram_size", 3)}

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        ids = numpy.array([prompt])
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        greedy = openvino_genai.GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            ignore_eos=not arguments.eos,
            stop_token_ids=set(arguments.eos),
            **drafts,
        )
        output = model.generate(inputs, greedy)
        return Decoded(list(output.tokens[0]), len(output.perf_metrics.raw_metrics.token_infer_durations))

    return decode


def converted(checkpoint: Path, dtype: str, mode: str = "") -> Path:
    """The folder of a checkpoint's conversion, made if there is none for these files and versions.

    ``mode``: of nncf, which rounds the weights; "" leaves them in the checkpoint's dtype.
    """
    packages = [*_PACKAGES, "nncf"] if mode else _PACKAGES
    known = checkpoint, _files(checkpoint), dtype, [version(name) for name in packages], *filter(None, [mode])
    return _made(checkpoint.name, known, _convert, checkpoint, dtype, mode)


def converted_head(head: Path, target: Path, dtype: str) -> Path:
    """The folder of a trained head's conversion for a target, made if there is none."""
    known = head, _files(head), _layers(head, target), dtype, [version(name) for name in _PACKAGES]
    return _made(head.name, known, _convert_head, head, _layers(head, target), dtype)


def _layers(head: Path, target: Path) -> list[int]:
    """The target's layers whose outputs a head reads.

    Heads number the states as transformers' ``hidden_states``, which begin with the embeddings. By default GenAI reads
    one layer further.
    """
    num_layers = json.loads((target / "config.json").read_text())["num_hidden_layers"]
    states = json.loads((head / "config.json").read_text()).get("eagle_aux_hidden_state_layer_ids")
    return [state - 1 for state in states or (2, num_layers // 2, num_layers - 3)]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())


def _made(name: str, known: tuple[object, ...], convert: Callable[..., None], *arguments: object) -> Path:
    """The folder that ``convert`` makes of its arguments, in a process of its own, whose memory goes with it."""
    folder = _CONVERTED / f"{name}-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}"
    if not folder.exists():
        _CONVERTED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CONVERTED) as unfinished:
            made = Path(unfinished, "model")
            converter = multiprocessing.get_context("fork").Process(target=convert, args=(*arguments, made))
            converter.start()
            converter.join()
            if converter.exitcode:
                raise SystemExit(f"{name} can't be converted")
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


def _convert_head(head: Path, layers: list[int], dtype: str, folder: Path) -> None:
    """Export the head by the exporter's own class, and name the layers, which the exporter doesn't."""
    import openvino
    import torch
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM

    class Head(LlamaEagle3ForCausalLM):
        """In another module than the exporter's, where it would take the class for a wrapper."""

    model = Head.from_pretrained(head, dtype=getattr(torch, dtype)).eval()
    with tempfile.TemporaryDirectory(dir=_CONVERTED) as exported:
        export_from_model(model, exported, task="text-generation-with-past", patch_16bit_model=dtype != "float32")
        graph = openvino.Core().read_model(Path(exported, "openvino_model.xml"))
        graph.set_rt_info(layers, ["hidden_layers_list"])
        folder.mkdir()
        openvino.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
        shutil.copy(Path(exported, "config.json"), folder)


if __name__ == "__main__":
    serve(load, prepare, ["transformers", *_PACKAGES])
