"""The state of an unfinished training run in its folder, from which a resumed run goes on."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.disk import PART
from specdec.heads.training.run import Resumed, RunOutcome
from specdec.machine.cache_files import put_in_place

FILE = "training.safetensors"
_KIND = "eagle3"  # of the head; runs that trained other kinds don't go on
_UNREADABLE = OSError, ValueError, KeyError, TypeError, SafetensorError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training run at one of its evaluations.

    Attributes:
        num_documents: of the text that it trains on.
        seconds: planned for the training.
        best: acceptance of the head in the folder; None without one.
        resumed: what ``Trainer.train`` goes on from.
    """

    num_documents: int
    seconds: float
    best: Acceptance | None
    resumed: Resumed

    def save(self, folder: Path) -> None:
        """Replace the folder's checkpoint."""
        facts = {"kind": _KIND, "num_documents": self.num_documents, "seconds": self.seconds}
        facts |= {"best": self.best and asdict(self.best), "run": asdict(self.resumed.run)}
        on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in self.resumed.tensors.items()}
        partial = folder / f"{PART}{os.getpid()}-{FILE}"
        try:
            save_file(on_cpu, partial, metadata={"specdec": json.dumps(facts)})
            put_in_place(partial, folder / FILE)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, num_documents: int) -> "Checkpoint | None":
        """Return the folder's checkpoint, with its tensors on the CPU.

        None if there is none for an EAGLE-3 head and a text of ``num_documents``, or it is damaged.
        """
        try:
            with safe_open(folder / FILE, framework="pt") as file:
                facts = json.loads(file.metadata()["specdec"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            best = TypeAdapter(Acceptance | None).validate_python(facts["best"])
            resumed = Resumed(TypeAdapter(RunOutcome).validate_python(facts["run"]), tensors)
            checkpoint = cls(facts["num_documents"], facts["seconds"], best, resumed)
        except _UNREADABLE:
            return None
        return checkpoint if facts.get("kind") == _KIND and checkpoint.num_documents == num_documents else None


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a run that has ended."""
    (folder / FILE).unlink(missing_ok=True)
