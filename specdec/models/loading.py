"""Loading a model's weights and tokenizer from a folder or the hub."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from specdec.errors import ModelError, RequestError, memory_ran_out, nearest, plural, shortened
from specdec.models.adapter_files import base_of, with_adapter
from specdec.models.auto_classes import auto_class
from specdec.models.checkpoint_files import GIVE_A_MODEL, NO_CONFIG, lacks_config, remedy_for_files
from specdec.models.gguf_file import check_gguf, forget_quantization, gguf_arguments, is_gguf, reason_of
from specdec.models.gguf_header import GgufHeader
from specdec.models.gguf_settings import check_tensors
from specdec.models.hub import HubAnswer, place_of
from specdec.models.own_models import BUILT_IN, OWN_MODELS, own_folder
from specdec.models.tokenizer_files import read_processor, read_tokenizer

_DTYPES = "bfloat16", "float16", "float32", "float64"
_DEVICES = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps"}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model given by name, with the device and dtype to load it in; made by ``of``, which checks them.

    Attributes:
        name: a folder, a GGUF file, or a hub name.
        device: a torch device; "" for the default.
        dtype: the name of a torch dtype; "auto" for the checkpoint's own.
    """

    name: str
    device: str = ""
    dtype: str = "auto"
    _known: list[HubAnswer] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, device: object = None, dtype: object = None) -> Self:
        """Return the source of a model; device and dtype may be names, torch objects or None.

        Raises:
            RequestError: for a device that torch doesn't have here, or an unknown dtype.
            ModelError: for a path without a model.
        """
        device, dtype = checked_device(device), checked_dtype(dtype)
        if name == BUILT_IN and dtype == "auto":
            dtype = "float32"  # on CPUs as fast as the checkpoint's bfloat16, or faster
        return cls(checked_name(name, dtype), device, dtype)

    @property
    def torch_device(self) -> str:
        """The device on which torch computes: by default a GPU, if there is one."""
        import torch

        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def hub_answer(self) -> HubAnswer:
        """Return the hub's answer about the model, which the first call requests.

        Raises as ``HubAnswer.of``.
        """
        if not self._known:
            self._known.append(HubAnswer.of(self.name))
        return self._known[0]


def refuse_for_loaded(model: object, device: object, dtype: object) -> None:
    """Raise an error if a device or dtype is given for a model that is loaded already.

    Raises:
        RequestError: with the remedy.
    """
    what = "is for a model given by its path or hub name, and this"
    if device is not None:
        raise RequestError(
            f"device={device!r} {what} {type(model).__name__} is loaded already: move it with model.to({str(device)!r})"
        )
    if dtype is not None:
        raise RequestError(
            f"dtype={dtype!r} {what} {type(model).__name__} is loaded already: load it with "
            "AutoModelForCausalLM.from_pretrained(…, dtype=…)"
        )


def checked_dtype(given: object) -> str:
    """Return the name of a dtype, given by name or as a torch dtype; "auto" for None.

    Raises:
        RequestError: for a dtype in which models can't be loaded.
    """
    name = str(given).removeprefix("torch.")
    if given is None or name == "auto":
        return "auto"
    if name not in _DTYPES:
        near = [_SHORT[name]] if name in _SHORT else nearest(name, _DTYPES)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RequestError(f"dtype={given!r}: {hint}it must be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}")
    return name


def checked_device(given: object) -> str:
    """Return the name of a device, given by name or as a torch device; "" for None.

    Raises:
        RequestError: for a device that torch doesn't have here.
    """
    import torch

    if given is None or given == "auto":
        return ""
    try:
        device = torch.device(given)  # type: ignore[call-overload]  # any type that torch takes
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, TypeError, ValueError) as error:  # by the kind of device
        reason = shortened(str(error).splitlines()[0])
        if reason.startswith("Expected one of"):  # all of torch's kinds follow, most of which nobody has
            near = _DEVICES.get(str(given).casefold())
            remedy = f", did you mean {near!r}?" if near else ": give 'cpu', 'cuda' or 'mps'"
            reason = f"torch has no device of that name{remedy}"
        elif "compiled with" in reason:
            reason += ": install a build of torch for it, or give device='cpu'"
        raise RequestError(f"device={given!r} can't be used here: {reason}") from error
    return str(device)


def checked_name(name: str, dtype: str = "auto") -> str:
    """Return a model's path or hub name, with ``~`` expanded. ``OWN_MODELS`` go before folders of their names.

    Args:
        dtype: in which the model will be loaded; SmolLM2 has a checkpoint of its own for bfloat16.

    Raises:
        ModelError: if it is empty, a path that is neither a folder nor a GGUF file that can be read, or SmolLM2 hasn't
            been fetched.
    """
    if not name:
        raise ModelError(f"the model's name is empty. {GIVE_A_MODEL}")
    if name in OWN_MODELS:
        return own_folder(name, dtype)
    name = os.path.expanduser(name)
    path = Path(name)
    if is_gguf(name):
        check_gguf(name)
        return name
    if path.is_file():
        raise ModelError(
            f"can't load {name!r}: it is a file. Give the folder that has the model's config.json and safetensors "
            "weights, or a GGUF file"
        )
    is_a_path = name.startswith((".", "/")) or name.count("/") > 1  # hubs name owner/model
    if is_a_path and not path.is_dir():
        raise ModelError(f"can't load {name!r}: there is no such folder. {GIVE_A_MODEL}")
    return name


def load_pretrained(
    name: str,
    tokenizer: Any | None = None,
    dtype: str = "auto",
    device: str = "",
    hub: HubAnswer | None = None,
    **others: Any,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a path or hub name: safetensors or a GGUF file, without remote code.

    An adapter of PEFT's is added to its base model. A GGUF file's weights are dequantised to the dtype.

    In the tokenizer's place comes the processor of images or audio, if the model has one.

    Args:
        tokenizer: used instead of the model's own.
        dtype: the name of a torch dtype; "auto" for the checkpoint's own.
        device: a torch device; "" leaves the model where transformers puts it.
        hub: the hub's answer about the model; None requests it.
        others: further arguments of transformers' ``from_pretrained``.

    Raises:
        ModelError: with what went wrong.
    """
    name = checked_name(name, dtype)
    hub = hub or HubAnswer.of(name)
    if (base := base_of(name, hub)) is not None:
        loaded = read_processor(name, hub) if tokenizer is None else tokenizer
        return with_adapter(load_pretrained(base, loaded, dtype, device, **others)[0], name, hub), loaded
    place, where = place_of(name, hub)
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        header = GgufHeader.of(Path(name)) if is_gguf(name) else None
        own = gguf_arguments(header) if header else {}
        auto = auto_class(AutoConfig.from_pretrained(place, **where)) if header is None else AutoModelForCausalLM
        model, report = auto.from_pretrained(
            place, dtype=dtype, use_safetensors=True, output_loading_info=True, **where, **{**own, **others}
        )
        loaded = read_processor(name, hub) if tokenizer is None else tokenizer
    except ModelError:
        raise
    except Exception as error:  # damaged files raise errors of any kind
        raise ModelError(f"can't load {name!r}: {_why_not(name, error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would continue with random numbers instead
        saved_as = ", ".join(model.config.architectures or ["a model of no name"])
        raise ModelError(
            f"can't load {name!r} as a causal language model: it was saved as {saved_as}, and of the weights of "
            f"{type(model).__name__} {len(missing)} are missing from it, among them {missing[0]}"
        )
    if header:
        check_tensors(header, model, report["unexpected_keys"])
        forget_quantization(model)
    return _moved(model.eval(), name, device), loaded


def _why_not(name: str, error: Exception) -> str:
    """Return why a model can't be read, and what to do."""
    here = "" if Path(name).exists() else "there is no such folder here, and of the hub: "
    reason = f"{here}{NO_CONFIG if lacks_config(Path(name)) else _reason(error)}"
    return memory_ran_out(error) or (reason_of(error) if is_gguf(name) else f"{reason}. {remedy_for_files(name)}")


def load_pretrained_tokenizer(name: str, hub: HubAnswer | None = None) -> Any:
    """Load a tokenizer from a path or hub name, without remote code; ``hub`` is as for ``load_pretrained``.

    Raises:
        ModelError: with what went wrong.
    """
    name = checked_name(name)
    return read_tokenizer(name, hub or HubAnswer.of(name))


def _moved(model: Any, name: str, device: str) -> Any:
    """Return the model on a device; transformers may have placed it there already."""
    import torch

    wanted = torch.device(device) if device else model.device
    if wanted.type == model.device.type and wanted.index in {None, model.device.index}:
        return model
    try:
        return model.to(device)
    except (RuntimeError, ValueError, AssertionError) as error:  # such as too little memory
        raise ModelError(f"{name!r} can't be moved to {device}: {_reason(error)}. Give device='cpu'") from error


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def check_tokenizer(tokenizer: Any | None, vocab_size: int) -> None:
    """Raise ModelError if an object isn't a tokenizer, or is another model's."""
    if tokenizer is None:
        return
    if not callable(tokenizer) or not hasattr(tokenizer, "decode") or not hasattr(tokenizer, "__len__"):
        raise ModelError(
            f"tokenizer={tokenizer!r} is not a transformers tokenizer: it must encode when called, have decode and a "
            "length"
        )
    if len(tokenizer) > vocab_size:
        raise ModelError(
            f"the tokenizer has {plural(len(tokenizer), 'id')} but the model's vocabulary is {vocab_size}: "
            "is it another model's? Load it from the same path as the model"
        )
