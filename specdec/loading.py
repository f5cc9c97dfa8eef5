"""Loading of a model's weights and tokenizer from a folder or hub."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec.errors import ModelError, in_one_line
from specdec.wording import plural

_SECONDS_TO_ANSWER = 5.0
_OF_TOKENIZERS = re.compile(r"token|vocab|tekken|spiece|\.spm$|\.model$|merges")
_MOST_OF_A_REASON = 300
_REMEDY = "Give a folder with safetensors weights, or a hub name"


def checked_name(name: str) -> str:
    """A path, or a hub name, that may well be a model's; ``~`` is the user's folder.

    Raises:
        ModelError: for a path where there is no folder.
    """
    name = os.path.expanduser(name)
    is_a_path = name.startswith((".", "/")) or name.count("/") > 1 or Path(name).is_file()  # hubs name owner/model
    if is_a_path and not Path(name).is_dir():
        raise ModelError(f"can't load {name!r}: there is no such folder. {_REMEDY}")
    return name


def must_be_cached(name: str) -> bool:
    """Return True for a hub's name whose files have to come from the hub's cache, as the hub doesn't answer.

    Asked first, since transformers would try again for half a minute.

    Raises:
        ModelError: for one that isn't there, either.
    """
    if Path(name).is_dir():
        return False
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        HfApi().model_info(name, timeout=_SECONDS_TO_ANSWER)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled):  # an answer, which loading tells in full
        return False
    except Exception as error:  # of whatever library makes the connection
        from transformers.utils import cached_file

        if cached_file(name, "config.json", local_files_only=True, _raise_exceptions_for_missing_entries=False):
            return True
        raise ModelError(
            f"can't load {name!r}: there is no such folder here, it isn't in the hub's cache, and the hub can't be "
            f"reached ({in_one_line(error)}). {_REMEDY}"
        ) from error
    return False


def load_pretrained(name: str, tokenizer: Any | None = None, dtype: str = "auto", **others: Any) -> tuple[Any, Any]:
    """A model and its tokenizer from a path or hub name: safetensors only, no remote code.

    ``others`` are transformers' own.

    Raises:
        ModelError: with what went wrong.
    """
    name = checked_name(name)
    is_offline = must_be_cached(name)
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, use_safetensors=True, output_loading_info=True, local_files_only=is_offline, **others
        )
        loaded = _read_tokenizer(name, is_offline) if tokenizer is None else tokenizer
    except ModelError:
        raise
    except Exception as error:  # damaged files raise whatever their readers like
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if _is_adapter(Path(name)) and find_spec("peft") is None:
            raise ModelError(f"can't load {name!r}: it is an adapter, which needs peft: pip install peft") from error
        here = "" if Path(name).is_dir() else "there is no such folder here, and of the hub: "
        raise ModelError(f"can't load {name!r}: {here}{reason.rstrip('.')}. {_REMEDY}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        saved_as = ", ".join(model.config.architectures or ["a model of no name"])
        raise ModelError(
            f"can't load {name!r} as a causal language model: it was saved as {saved_as}, and of the weights of "
            f"{type(model).__name__} {len(missing)} are missing from it, among them {missing[0]}"
        )
    return model.eval(), loaded


def load_pretrained_tokenizer(name: str) -> Any:
    """A tokenizer from a path or hub name, without remote code.

    Raises:
        ModelError: with what went wrong.
    """
    name = checked_name(name)
    return _read_tokenizer(name, must_be_cached(name))


def _read_tokenizer(name: str, is_offline: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=is_offline)
    except Exception as error:  # damaged files raise whatever their readers like
        folder = Path(name)
        if folder.is_dir() and not any(_OF_TOKENIZERS.search(file.name) for file in folder.iterdir()):
            whose = "its base model's" if _is_adapter(folder) else "the model's"
            raise ModelError(
                f"{name!r} has no tokenizer: save {whose} into the folder with tokenizer.save_pretrained({name!r}), or "
                f"pass it: Generator({name!r}, tokenizer)"
            ) from error
        reason = " ".join(str(error).split()).rstrip(".")[:_MOST_OF_A_REASON] or type(error).__name__
        raise ModelError(
            f"can't load the tokenizer of {name!r}: {reason}. Give a model's folder or hub name"
        ) from error


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def check_tokenizer(tokenizer: Any | None, vocab_size: int) -> None:
    """Raises ModelError for what is no tokenizer, or another model's."""
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
