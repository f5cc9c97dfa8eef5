"""Checks of a command's arguments before it imports torch and transformers, which takes seconds."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specdec.errors import ModelError, RequestError
from specdec.models.position_limit import check_length as check_tokens
from specdec.models.position_limit import position_limit
from specdec.plugins.names import BUILT_INS, check_name, has_others, known_names, merged_parts

_WITH_HEADS = "dflash", "dspark", "eagle", "eagle3", "medusa", "p_eagle"


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
    from specdec.models.weights.modes import checked_weights
    from specdec.numerics import checked_mode
    from specdec.plugins.options import name_and_options
    from specdec.settings import Settings

    names = known_names("proposers")
    for part in (part for given in proposers for part in merged_parts(given, names)):
        check_name("proposers", name_and_options(part)[0])
        if not has_others():
            _check_files(part)
    check_name("verifiers", name_and_options(verifier)[0])
    if backend != "auto":
        check_name("backends", name_and_options(backend)[0])
    checked_mode(numerics)
    if not has_others():
        checked_weights(weights, BUILT_INS["kernels"])
    Settings.make(settings)


def _check_files(given: str) -> None:
    """Check the file or folder that an option of a built-in strategy names."""
    from specdec.models.loading import checked_name
    from specdec.plugins.options import name_and_options, read_value, text_options

    name, options = name_and_options(given)[0], text_options(given)
    option = "head" if name in _WITH_HEADS else "model" if name == "draft_model" else ""
    value = read_value(options.get(option, "null"))
    if value is None:
        return
    text = value if isinstance(value, str) else options[option]  # a folder's name may look like a number
    if option == "model":
        checked_name(text)
    if option == "head" and not Path(text).expanduser().is_dir():
        raise ModelError(f"there is no folder {text}: give the folder of a head that was trained for this model")


def check_length(folder: str, texts: Iterable[str], max_new_tokens: int) -> None:
    """Refuse a text that is longer than the model's configuration allows, if its folder says so.

    Special tokens and the chat template's are not counted. A token has a byte at least, so most texts aren't encoded.

    Raises:
        RequestError: with the numbers.
    """
    limit, file = _limit_of(Path(folder)), Path(folder, "tokenizer.json")
    if limit is None or not file.is_file():
        return
    long = [text for text in texts if len(text.encode()) + max_new_tokens - 1 > limit]
    if not long:
        return
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    for text in long:
        number = len(tokenizer.encode(text, add_special_tokens=False).ids)
        check_tokens(number, max_new_tokens, limit)


def _limit_of(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return position_limit(SimpleNamespace(**config.get("text_config", config)))
    except (OSError, ValueError, TypeError, AttributeError):  # loading the model says what is wrong
        return None
