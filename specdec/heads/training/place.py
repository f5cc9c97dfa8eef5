"""The folder of a run, and which run it is: only the same one goes on with its time and checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from specdec.errors import RequestError
from specdec.heads.eagle3_folder import ARCHITECTURE
from specdec.heads.local_heads import folder_for, model_digest
from specdec.heads.training.script import Script
from specdec.heads.training.settings import HeadSettings
from specdec.models.architecture import name_of

_OPTIONS = {"draft_vocab_size": "vocabulary"}  # other settings have their option's name


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of a run, and the digest of its model."""

    folder: Path
    digest: str

    @classmethod
    def of(cls, model: Any, out: Path | None) -> "Place":
        """Return where a model's head is put: ``out``, or where ``auto`` looks for it.

        Raises:
            RequestError: without ``out``, for a model whose weights can't be read.
        """
        digest = model_digest(model)
        if out is None and not digest:
            raise RequestError(
                f"the weights of {name_of(model)} can't be read here, so auto wouldn't find its head: give a folder "
                "(--out)"
            )
        return cls(folder_for(digest) if out is None else out, digest)


def check_folder(folder: Path) -> None:
    """Refuse a folder with a model, or with a head that isn't EAGLE-3's.

    Raises:
        RequestError: with the remedy.
    """
    config = folder / "config.json"
    if not config.exists():
        return
    try:
        found = json.loads(config.read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, TypeError, LookupError):
        found = None
    if found != [ARCHITECTURE]:
        raise RequestError(f"{folder} has a model, or a head of another kind than EAGLE-3: give another folder (--out)")


def run_identity(digest: str, model: Any, script: Script, settings: HeadSettings) -> dict[str, Any]:
    """Return, as JSON's types, all that makes a run the same one: model, device, dtype, prompts, settings."""
    return {
        "model": digest,
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "script": blake2b(json.dumps(asdict(script)).encode(), digest_size=16).hexdigest(),
        "settings": settings.model_dump(mode="json"),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what to give so that a run is the one of before, in words."""
    found = [f"--{name} {before.get(name)}" for name in ("device", "dtype") if before.get(name) != now[name]]
    if before.get("script") != now["script"]:
        found.append("the same prompts (--prompts) and chat template")
    settings = before.get("settings") or {}
    changed = [name for name in now["settings"] if settings.get(name) != now["settings"][name]]
    return found + [_option(_OPTIONS.get(name, name.replace("_", "-")), settings.get(name)) for name in changed]


def _option(name: str, value: object) -> str:
    return f"no --{name}" if value is None else f"--{name} {value}"
