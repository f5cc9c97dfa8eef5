"""From a model, a folder or a hub's name to a conversion that was held against the model on the device at hand."""

from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.utils import cached_file
from transformers.utils.logging import tqdm

from specdec import ModelError
from specdec.backends.architecture import name_of, shapes_of
from specdec.cache_folder import cache_folder
from specdec.loading import ModelSource, is_gguf, load_pretrained, load_pretrained_tokenizer, must_be_cached
from specdec.probes.examination import why_fixed
from specdec_openvino.conversion import convert, refusal
from specdec_openvino.kept import Kept, name_of_folder, name_of_model
from specdec_openvino.model import OpenVINOModel
from specdec_openvino.options import OpenVINOOptions, openvino_type

Prove = Callable[[PreTrainedModel, Kept], None]
_FOLDER, _EXPORTED = "openvino", "openvino_model.xml"
_CAPABILITIES = {torch.float16: "FP16", torch.bfloat16: "BF16"}


def check(options: OpenVINOOptions) -> None:
    """Refuse what isn't there before seconds go into a conversion.

    Raises:
        ModelError: for a device that OpenVINO doesn't list, and for rounded weights without nncf.
    """
    devices = ov.Core().available_devices
    if options.device.split(".")[0] not in {name.split(".")[0] for name in devices}:
        raise ModelError(f"OpenVINO has no device {options.device!r} here: it has {', '.join(devices)}")
    if options.weights != "model" and find_spec("nncf") is None:
        raise ModelError(f"weights={options.weights} needs nncf: pip install nncf")


def check_dtype(dtype: torch.dtype, device: str) -> None:
    """Refuse a dtype that a device doesn't compute in.

    Raises:
        ModelError: with the remedy.
    """
    openvino_type(dtype)
    wanted = _CAPABILITIES.get(dtype)
    if wanted is not None and wanted not in ov.Core().get_property(device, "OPTIMIZATION_CAPABILITIES"):
        name = str(dtype).removeprefix("torch.")
        raise ModelError(
            f"OpenVINO computes no {name} on this {device}: load the model in float32, or use backend='hf'"
        )


def kept_of(model: PreTrainedModel, options: OpenVINOOptions, prove: Prove) -> Kept:
    """The conversion of a model.

    Raises:
        ModelError: for a model that can't be converted, or has other logits then, with the reason; where the folder
            can't be written to.
    """
    devices = {tensor.device.type for tensor in model.state_dict().values()}
    if devices != {"cpu"}:
        raise ModelError(
            f"the openvino backend reads weights from the CPU, and those of {name_of(model)} are on "
            f"{', '.join(sorted(devices))}: model.to('cpu')"
        )
    return _kept(name_of_model(model), "", lambda: model, options, prove)


def read(source: ModelSource, tokenizer: Any | None, options: OpenVINOOptions, prove: Prove) -> tuple[Any, Any]:
    """A converted model and its tokenizer, from a folder or a hub's name; the torch model is loaded to convert it only.

    Of a GGUF file the torch model itself.

    Raises:
        ModelError: as for a model, and for one that can't be loaded.
    """
    check(options)
    if source.device not in {"", "cpu"}:
        raise ModelError(
            f"device={source.device!r} is torch's, and the openvino backend converts a model on the CPU: leave it out, "
            "or name one of OpenVINO's devices with backend='openvino:device=…'"
        )
    name = source.name
    if is_gguf(name):  # a model object like any other
        return load_pretrained(name, tokenizer, source.dtype)
    folder = Path(name) if Path(name).is_dir() else _snapshot(name)
    if folder is not None and (folder / _EXPORTED).is_file() and not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"can't load {name!r}: an export of OpenVINO's can't be held against the model's own forward; give the "
            "folder that it was exported from"
        )
    if folder is None or not (folder / "config.json").is_file():
        load_pretrained(name, tokenizer, source.dtype)  # says what is wrong
        raise ModelError(f"can't load {name!r}: it has no config.json")
    config = AutoConfig.from_pretrained(folder)
    dtype = "" if source.dtype in {"auto", str(config.dtype).removeprefix("torch.")} else source.dtype
    kept = _kept(
        f"{name_of_folder(folder)}-{dtype}".rstrip("-"),
        f"{folder.resolve()} {dtype}".rstrip(),
        lambda: load_pretrained(name, tokenizer, source.dtype)[0],
        options,
        prove,
    )
    tokenizer = load_pretrained_tokenizer(name) if tokenizer is None else tokenizer
    try:
        generation_config = GenerationConfig.from_pretrained(folder)
    except OSError:  # it has none
        generation_config = GenerationConfig.from_model_config(config)
    return OpenVINOModel(name, kept, config, generation_config), tokenizer


def _snapshot(name: str) -> Path | None:
    """The folder of a checkpoint, for a hub's name the one in the hub's cache; None where there is no configuration."""
    with suppress(OSError, ValueError):
        if (file := cached_file(name, "config.json", local_files_only=must_be_cached(name))) is not None:
            return Path(file).parent
    return None


def _kept(name: str, source: str, load: Callable[[], PreTrainedModel], options: OpenVINOOptions, prove: Prove) -> Kept:
    """The conversion of some name, made and proven now where it isn't yet."""
    kept, device = Kept.find(cache_folder() / _FOLDER / name), _device_name(options.device)
    if kept is not None and device in kept.proven_on:
        check_dtype(kept.dtype, options.device)
        return kept
    model = load()
    check_dtype(model.dtype, options.device)
    if kept is None:
        kept = _converted(model, cache_folder() / _FOLDER / name, source)
    prove(model, kept)
    return kept.proven(device)


def _converted(model: PreTrainedModel, folder: Path, source: str) -> Kept:
    windows = {
        None if window is None else (window.kind, window.size) for window in shapes_of(model, ()).attention.values()
    }
    if any(window is not None and window[0] == "chunked" for window in windows):
        raise refusal(model, "its attention is to chunks, which paged attention has no windows for")
    if reason := why_fixed(model):
        raise refusal(model, reason)
    with tqdm(total=2, desc="converting to OpenVINO, once", leave=False) as progress:
        converted = convert(model)
        if {layer.window for layer in converted.layers} != {0 if window is None else window[1] for window in windows}:
            raise refusal(model, "its windows are made by masks of its own, which paged attention doesn't read")
        progress.update()
        return Kept.save(converted, folder, model.dtype, source)


def _device_name(device: str) -> str:
    return f"{device}: {ov.Core().get_property(device, 'FULL_DEVICE_NAME')}"
