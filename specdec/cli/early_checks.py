"""What a command can refuse before it imports torch and transformers, which takes seconds."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specdec.errors import ModelError, RequestError, plural
from specdec.models.position_limit import position_limit
from specdec.plugins.names import BUILT_INS, check_name, has_others, merged_parts

# Options of built-in strategies that name files, with the remedy.
_HEADS = "eagle", "eagle3", "medusa", "mtp", "p_eagle"
_OPTION = re.compile(r"(?:^|,)\s*(head|path|model)\s*=\s*([^,]+)")


def check_readable(*paths: Path | None) -> None:
    """Raise RequestError for a file that can't be read; pipes are left to their reader."""
    for path in paths:
        if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
            continue
        try:
            path.open("rb").close()
        except OSError as error:
            raise RequestError(f"{path} can't be read: {error.strerror}") from error


def check_stages(
    proposers: Iterable[str], verifier: str, numerics: str, weights: str, backend: str, settings: Mapping[str, Any]
) -> None:
    """Check names of plug-ins, files that built-in strategies need, and settings.

    What plug-ins from elsewhere may allow is left to them.

    Raises:
        PluginError: for a name that isn't installed.
        ModelError: for a head or a draft model that isn't there.
        RequestError: for unknown numerics or weights, or refused settings.
    """
    from specdec.numerics import checked_mode
    from specdec.settings import Settings
    from specdec.weights.modes import checked_weights

    for part in (part for given in proposers for part in merged_parts(given, BUILT_INS["proposers"])):
        check_name("proposers", _name(part))
        for option, value in _OPTION.findall(part.partition(":")[2]):
            _check_file(_name(part), option, value.strip())
    check_name("verifiers", _name(verifier))
    if backend != "auto":
        check_name("backends", _name(backend))
    checked_mode(numerics)
    if not has_others():
        checked_weights(weights, BUILT_INS["kernels"])
    Settings.make(settings)


def _check_file(name: str, option: str, value: str) -> None:
    """Check a file or folder that an option of a built-in strategy names."""
    from specdec.models.loading import checked_name

    if value in {"None", "null"}:
        return
    if option == "model" and name == "draft_model":
        checked_name(value)
    if option == "head" and name in _HEADS and not Path(value).expanduser().is_dir():
        raise ModelError(f"there is no folder {value}: give the folder of a head that was trained for this model")
    if option == "path" and name == "datastore" and not Path(value).expanduser().exists():
        remedy = "make one with `specdec index FOLDER --output FILE`"
        raise RequestError(f"the index {value} can't be read (No such file or directory): {remedy}")


def _name(given: str) -> str:
    return given.partition(":")[0].strip()


def check_length(folder: str, texts: Iterable[str], max_new_tokens: int) -> None:
    """Refuse a text that is longer than the model's configuration allows, if its folder says so.

    Special tokens and the chat template's are not counted. A token has a byte at least, so most texts aren't encoded.

    Raises:
        RequestError: with the numbers.
    """
    limit, file = _limit_of(Path(folder)), Path(folder, "tokenizer.json")
    if limit is None or not file.is_file():
        return
    long = [text for text in texts if len(text.encode()) + max_new_tokens > limit]
    if not long:
        return
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    for text in long:
        number = len(tokenizer.encode(text, add_special_tokens=False).ids)
        if number + max_new_tokens > limit:
            raise RequestError(
                f"the prompt has {plural(number, 'token')} and max_new_tokens={max_new_tokens} would bring it to "
                f"{number + max_new_tokens}, but the model supports {limit} positions: shorten one of them"
            )


def _limit_of(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return position_limit(SimpleNamespace(**config.get("text_config", config)))
    except (OSError, ValueError, TypeError, AttributeError):  # loading the model says what is wrong
        return None
