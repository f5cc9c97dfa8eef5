"""The hub's answer about a model that is given by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from specdec.errors import HubUnreachableError, ModelError, in_one_line
from specdec.models.checkpoint_files import ADAPTER_CONFIG, CONFIG, GIVE_A_MODEL, model_file
from specdec.models.gguf_file import is_gguf

_SECONDS_TO_ANSWER = 5.0


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """The hub's answer about a model.

    Attributes:
        is_offline: True if the hub can't be reached, so that the model must be loaded from the hub's cache.
        files: names of the model's files on the hub; empty for a path, if the hub can't be reached, and for a model
            that it refuses to show.
    """

    is_offline: bool = False
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str) -> Self:
        """Request a model's files from the hub, once and for five seconds; no request is made for a path.

        Called before loading, since transformers takes seconds to import, and would retry for half a minute.

        Raises:
            ModelError: if the hub has no model of that name.
            HubUnreachableError: if the hub can't be reached, and the model isn't in its cache either.
        """
        if Path(name).exists():
            return cls()
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

        nowhere = f"can't load {name!r}: there is no such folder here"

        try:
            siblings = HfApi().model_info(name, timeout=_SECONDS_TO_ANSWER).siblings or ()
        except HFValidationError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ModelError(f"{nowhere}, and it can't be a hub name: {reason}. {GIVE_A_MODEL}") from error
        except HfHubHTTPError as error:
            if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
                remedy = "Check the name; for a private model, log in first: hf auth login"
                raise ModelError(f"{nowhere}, and the hub shows you no model of that name. {remedy}") from error
            return cls()  # loading reports the answer in full
        except Exception as error:  # of any library that makes the connection
            if any(model_file(name, file, is_offline=True) for file in (CONFIG, ADAPTER_CONFIG)):
                return cls(is_offline=True)
            raise HubUnreachableError(
                f"{nowhere}, it isn't in the hub's cache, and the hub can't be reached ({in_one_line(error)}). Check "
                "the connection, or give a folder with safetensors weights"
            ) from None  # the message has the cause; the connection's own traceback is 60 lines
        return cls(files=tuple(file.rfilename for file in siblings))


def place_of(name: str, hub: HubAnswer | None) -> tuple[str, Mapping[str, Any]]:
    """Return the path or name to pass to transformers, and its arguments.

    Raises:
        ModelError: for a hub name that is unavailable.
    """
    if is_gguf(name):
        return str(Path(name).absolute().parent), {"gguf_file": Path(name).name}
    return name, {"local_files_only": (hub or HubAnswer.of(name)).is_offline}
