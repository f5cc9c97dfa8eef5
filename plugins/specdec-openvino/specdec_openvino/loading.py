"""The graphs of a model object, a folder or a hub name: from the cache, or converted and compared with the model."""

from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from transformers import PreTrainedModel

from specdec import ModelError
from specdec.machine.cache_folder import cache_folder
from specdec.models import (
    ModelSource,
    fingerprint_of,
    is_gguf,
    load_pretrained,
    load_pretrained_tokenizer,
    model_file,
    name_of,
)
from specdec.models.checkpoint_files import CONFIG
from specdec.models.notes import notes_of
from specdec_openvino.conversion.external_weights import Checkpoint, weights_of
from specdec_openvino.conversion.files import Conversion, path_in, remove_others
from specdec_openvino.conversion.names import name_of_model
from specdec_openvino.conversion.rounding import Rounding, rounded
from specdec_openvino.conversion.tracing import convert_checked
from specdec_openvino.conversion.weight_separation import separate_weights
from specdec_openvino.engine.graphs import Graphs
from specdec_openvino.model import OpenVINOModel
from specdec_openvino.options import OpenVINOOptions, check_dtype, computes_in
from specdec_openvino.sources.base import ConversionSource, Prove
from specdec_openvino.sources.checkpoints import CheckpointFolder, GgufFile
from specdec_openvino.sources.export import Export
from specdec_openvino.sources.hub import fetch_export, is_name_of_export

_FOLDER = "openvino"


def check(options: OpenVINOOptions) -> None:
    """Check the options before a conversion, which takes seconds.

    Raises:
        ModelError: for a device that OpenVINO doesn't list, a precision that it doesn't support there, or a group size
            without 4-bit weights.
    """
    devices = ov.Core().available_devices
    if options.device.split(".")[0] not in {name.split(".")[0] for name in devices}:
        raise ModelError(f"OpenVINO has no device {options.device!r} here: it has {', '.join(devices)}")
    if options.precision != "model" and not computes_in(torch.bfloat16, options.device):
        raise ModelError(
            f"OpenVINO doesn't support bfloat16 on this {options.device}: leave out precision={options.precision}"
        )
    if "group_size" in options.model_fields_set and not options.weights.startswith("int4"):
        raise ModelError("group_size is for 4-bit weights, since 8 bits have a scale per channel: add weights=int4")


def graphs_of(model: PreTrainedModel, options: OpenVINOOptions, prove: Prove) -> Graphs:
    """Return a model's graphs, which read its own weights; all backends share them until the model changes.

    Raises:
        ModelError: if the model can't be converted, or has other logits afterwards, with the reason; for rounded
            weights without nncf.
    """
    devices = {tensor.device.type for tensor in model.state_dict().values()}
    if devices != {"cpu"}:
        raise ModelError(
            f"the openvino backend reads weights from the CPU, and those of {name_of(model)} are on "
            f"{', '.join(sorted(devices))}: model.to('cpu')"
        )
    notes, device, rounding = notes_of(model), _device_name(options.device), options.rounding
    with notes.lock:
        question = "openvino", device, fingerprint_of(model)
        graphs: Graphs | None = notes.shared.get((*question, rounding))
        if graphs is None:
            _check_nncf(options)
            graphs = notes.shared.get((*question, None)) or _graphs_of(model, device, options, prove)
            if rounding is None:
                notes.shared[(*question, None)] = graphs
            else:
                made = rounded(graphs.conversion, graphs.weights, rounding, options.device)
                notes.shared[(*question, rounding)] = graphs = Graphs(made, {})
        return graphs


def _graphs_of(model: PreTrainedModel, device: str, options: OpenVINOOptions, prove: Prove) -> Graphs:
    name = name_of_model(model, device)
    path = path_in(_folder(), name) if name else None
    known = Conversion.find(path) if path is not None else None
    if known is not None:
        weights = weights_of(model)
        if known.facts.fit(weights):
            return Graphs(known, weights)
    converted = convert_checked(model)
    graphs = Graphs(*separate_weights(converted, weights_of(converted.model)))
    prove(model, graphs)
    if path is not None:
        graphs.conversion.save(path)
    return graphs


def read(source: ModelSource, tokenizer: Any | None, options: OpenVINOOptions, prove: Prove) -> tuple[Any, Any]:
    """Return a converted model and its tokenizer from a name; torch loads the model only to convert it.

    For another dtype than a folder's files have, the torch model itself is returned.

    Raises:
        ModelError: if the model can't be loaded or converted, with the reason; for rounded weights that aren't cached,
            without nncf.
    """
    check(options)
    if source.device not in {"", "cpu"}:
        raise ModelError(
            f"device={source.device!r} is torch's, and the openvino backend converts a model on the CPU: leave it out, "
            "or name one of OpenVINO's devices with backend='openvino:device=…'"
        )
    origin = _origin_of(source, tokenizer)
    config = origin.config()
    if isinstance(origin, CheckpointFolder) and source.dtype not in {
        "auto",
        str(config.dtype).removeprefix("torch."),
    }:  # the files have other numbers
        return load_pretrained(source.name, tokenizer, source.dtype, hub=source.hub_answer())
    graphs, state = _graphs_from(origin, options, prove)
    tokenizer = load_pretrained_tokenizer(source.name, source.hub_answer()) if tokenizer is None else tokenizer
    generation_config = origin.generation_config(config)
    return OpenVINOModel(source.name, graphs, config, generation_config, origin.folder, state), tokenizer


def _origin_of(source: ModelSource, tokenizer: Any | None) -> ConversionSource:
    name = source.name
    if is_gguf(name):
        return GgufFile(name, source.dtype, tokenizer)
    if is_name_of_export(source):
        return _export_of(source)
    config = model_file(name, CONFIG, source.hub_answer().is_offline)
    if config is None:
        load_pretrained(name, tokenizer, source.dtype, hub=source.hub_answer())  # raises with the reason
        raise ModelError(f"can't load {name!r}: it has no {CONFIG}")
    return CheckpointFolder(source, config.parent, tokenizer)


def _export_of(source: ModelSource) -> Export:
    """Return an export, which is fetched if it is on the hub; refused dtypes fetch nothing."""
    name = source.name
    if source.dtype not in {"auto", "float32"}:
        raise ModelError(
            f"dtype={source.dtype!r} is for checkpoints, and {name!r} is an OpenVINO export: use "
            "backend='openvino:precision=bfloat16'"
        )
    is_folder = Path(name).is_dir()
    folder = Path(name) if is_folder else fetch_export(name, source.hub_answer().is_offline)
    if not (folder / CONFIG).is_file():
        where = "it" if is_folder else "a folder with its files, and give the folder"
        raise ModelError(f"can't load {name!r}: it has no {CONFIG}: copy the checkpoint's into {where}")
    return Export(name, folder)


def _graphs_from(origin: ConversionSource, options: OpenVINOOptions, prove: Prove) -> tuple[Graphs, str]:
    """Return the graphs of files, kept from an earlier start if possible, and a name that changes with them."""
    state, rounding = origin.state(_device_name(options.device)), options.rounding
    path = path_in(_folder(), state)
    if rounding is None:
        return _known_graphs(path, origin, options) or _new_graphs(path, origin, options, prove), path.name
    rounded_path = _path_of_rounded(state, rounding)
    graphs = _known_graphs(rounded_path, origin, options)
    if graphs is None:
        _check_nncf(options)
        graphs = _known_graphs(path, origin, options) or _new_graphs(path, origin, options, prove)
        made = rounded(graphs.conversion, graphs.weights, rounding, options.device)
        _keep(made, rounded_path, state)
        graphs = _known_graphs(rounded_path, origin, options) or Graphs(made, {})  # a file's memory, if there is one
    return graphs, rounded_path.name


def _path_of_rounded(state: str, rounding: Rounding) -> Path:
    """Return the file of a conversion rounded by the installed nncf, or without nncf, by the version that made one."""
    if _has_nncf():
        return path_in(_folder(), f"{state}-{rounding.key(version('nncf'))}")
    made = path_in(_folder(), f"{state}-{rounding.key('*')}")
    return next(made.parent.glob(made.name), made)


def _check_nncf(options: OpenVINOOptions) -> None:
    if options.rounding is not None and not _has_nncf():
        raise ModelError(f"weights={options.weights} needs nncf: pip install nncf")


def _has_nncf() -> bool:
    return find_spec("nncf") is not None


def _known_graphs(path: Path, origin: ConversionSource, options: OpenVINOOptions) -> Graphs | None:
    """Return the graphs of files that were converted before; they read the files, and torch isn't needed."""
    known = Conversion.find(path)
    if known is None:
        return None
    check_dtype(known.facts.dtype, options.device)
    places = known.facts.places
    if origin.folder is None or not places:
        return Graphs(known, {}, known.let_go)
    with suppress(OSError, ValueError, KeyError):  # files that have changed
        checkpoint = Checkpoint(origin.folder, sorted({place.file for place in places.values()}))
        return Graphs(known, checkpoint.read(places), checkpoint.let_go)
    return None


def _new_graphs(path: Path, origin: ConversionSource, options: OpenVINOOptions, prove: Prove) -> Graphs:
    graphs = origin.graphs(options, prove)
    if options.rounding is None or origin.folder is not None:  # else two files would have all weights
        _keep(graphs.conversion, path, path.stem)
    return graphs


def _keep(conversion: Conversion, path: Path, state: str) -> None:
    conversion.save(path)
    remove_others(path, conversion.facts, state)


def _folder() -> Path:
    return cache_folder() / _FOLDER


def _device_name(device: str) -> str:
    return f"{device}: {ov.Core().get_property(device, 'FULL_DEVICE_NAME')}"
