"""Training of a head on a target's text, from a least-squares start to the best head of the schedule."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from specdec.errors import ModelError, plural
from specdec.heads.training.acceptance import Acceptance, held_out_acceptance
from specdec.heads.training.eagle3_training import DEPTH, Eagle3Training
from specdec.heads.training.kept_states import KeptStates
from specdec.heads.training.least_squares_start import Samples
from specdec.heads.training.losses import TrainingBatch, labels
from specdec.heads.training.packing import PackedRows
from specdec.heads.training.run import Resumed, RunOutcome
from specdec.heads.training.settings import TrainingSettings
from specdec.heads.training.target import States, TargetStates

_PREFIX = "optimizer."  # of its tensors' names
_Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # the fields of Samples


class ScheduledAdamW:
    """Updates of some parameters.

    Args:
        groups: parameters with their peak learning rate.
        schedule: its ``betas``, ``clip``, ``warm_up`` and ``flat_share`` are used.
    """

    def __init__(
        self, groups: Sequence[tuple[Sequence[torch.nn.Parameter], float]], schedule: TrainingSettings
    ) -> None:
        self._schedule = schedule
        self._parameters = [parameter for parameters, _ in groups for parameter in parameters]
        named = [{"params": [*parameters], "lr": rate, "peak": rate} for parameters, rate in groups]
        self._adamw = torch.optim.AdamW(named, betas=schedule.betas, weight_decay=0.0, fused=True)

    def step(self, loss: torch.Tensor, update: int, done: float) -> None:
        """Make one update.

        Args:
            loss: a scalar, with its graph.
            update: number of updates before.
            done: share of the training before it.
        """
        self._adamw.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, self._schedule.clip)
        for group in self._adamw.param_groups:
            group["lr"] = group["peak"] * self._factor(update, done)
        self._adamw.step()

    def _factor(self, update: int, done: float) -> float:
        """Return the factor on the rates: a warm-up, a constant part, a linear fall to zero."""
        flat = self._schedule.flat_share
        fall = 1.0 if done < flat else (1 - done) / (1 - flat)
        return min(1.0, (update + 1) / self._schedule.warm_up) * fall

    def state(self) -> dict[str, torch.Tensor]:
        """Return what ``restore`` takes: tensors whose names begin with ``optimizer.``, which later updates change."""
        moments = self._adamw.state_dict()["state"]
        return {f"{_PREFIX}{index}.{name}": each for index, held in moments.items() for name, each in held.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from a ``state``, on any device, for the same parameters; other tensors are ignored."""
        moments = dict[int, dict[str, torch.Tensor]]()
        for name, tensor in tensors.items():
            if name.startswith(_PREFIX):
                index, _, which = name.removeprefix(_PREFIX).partition(".")
                moments.setdefault(int(index), {})[which] = tensor
        self._adamw.load_state_dict({**self._adamw.state_dict(), "state": moments})


class Trainer:
    """Trains one head.

    Args:
        training: the head, on the target's device.
        target: runs the target for the layers of the head.
        held_out: rows to evaluate on.
        settings: how to train.
        clock: returns seconds.
    """

    def __init__(
        self,
        training: Eagle3Training,
        target: TargetStates,
        held_out: PackedRows,
        settings: TrainingSettings,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.training, self.target, self.held_out, self.clock = training, KeptStates(target), held_out, clock
        self.head, self.settings = training.head, settings

    def start(
        self, rows: PackedRows, generator: torch.Generator, goes_on: Callable[[int], bool] = lambda _: True
    ) -> float:
        """Begin the head by least squares on some rows; return the explained share of the next states' energy.

        Args:
            rows: packed rows, no fewer than one update uses.
            generator: the source of randomness, on the head's device.
            goes_on: called after some rows with the number of answer tokens read so far; False ends the reading.
        """
        parts, num_read = list[_Sample](), 0
        _check_size(rows, self.settings.rows_per_batch)
        for first in range(0, len(rows), self._rows_at_once):  # as training reads them
            chunk = rows[first : first + self._rows_at_once]
            parts.append(self._samples(chunk))
            num_read += chunk.num_answer_tokens
            if not goes_on(num_read):
                break
        return self.training.start(Samples(*(torch.cat(each) for each in zip(*parts, strict=True))), generator)

    def _samples(self, rows: PackedRows) -> _Sample:
        first = labels(rows, None, 1).to(self.training.device) - 1  # x_{i+1} of each sample
        states = self.target.of(rows)
        return (
            states.layers.flatten(0, 1)[first - 1].float(),
            rows.tokens.to(self.training.device).flatten()[first],
            states.final.flatten(0, 1)[first].float(),
        )

    def train(
        self,
        rows: PackedRows,
        seconds: float | None = None,
        watch: Callable[[RunOutcome], object] = lambda _: None,
        save: Callable[[Resumed], object] = lambda _: None,
        resumed: Resumed | None = None,
    ) -> RunOutcome:
        """Train on the rows in their order; the head ends as the best of those evaluated.

        Args:
            rows: packed rows, no fewer than one update uses.
            seconds: how long to train, in as many passes over the rows as that allows, evaluations included. The head
                before training is evaluated too. None for one pass.
            watch: called after each update and each evaluation; if an evaluation is the best so far, the head has its
                weights.
            save: called after each evaluation, before ``watch``, with what ``resumed`` takes.
            resumed: go on from there, with the same rows; its seconds count. The weights of before are replaced. Its
                tensors, on any device, are removed from it once they are restored, so that no copy stays in memory.
        """
        settings, run, began = (
            self.settings,
            RunOutcome() if resumed is None else copy.deepcopy(resumed.run),
            self.clock(),
        )
        began -= run.seconds
        _check_size(rows, settings.rows_per_batch)
        optimizer = ScheduledAdamW(self._groups(), settings)
        count = len(rows) // settings.rows_per_batch
        best, done = dict[str, torch.Tensor](), run.share(count, seconds)
        if resumed is not None:
            best = self._restore(resumed.tensors, optimizer)
            resumed.tensors.clear()
            watch(run)
        elif seconds is not None:
            best = self._evaluate(run, 0, best)
            save(self._state(run, best, optimizer))
            watch(run)
        due, recent = [share for share in settings.evaluated_at() if share > done], list[torch.Tensor]()
        for batch in self._with_states(rows, run.num_updates, is_repeated=seconds is not None):
            recent.append(self._update(batch, optimizer, run.num_updates, done).detach())
            run.num_updates += 1
            run.num_tokens += batch.rows.tokens.numel()
            run.num_answer_tokens += batch.num_answer_tokens
            run.seconds = self.clock() - began
            done = run.share(count, seconds)
            if due and done >= due[0]:
                due = [share for share in due if share > done]
                run.losses.append((run.num_updates, torch.stack(recent).mean().item()))
                recent.clear()
                best = self._evaluate(run, run.num_updates, best)
                save(self._state(run, best, optimizer))
            watch(run)
            if done >= 1:
                break
        self.head.load_state_dict(best)
        run.seconds = self.clock() - began
        return run

    def _update(self, batch: TrainingBatch, optimizer: ScheduledAdamW, update: int, done: float) -> torch.Tensor:
        """Make one update of the weights, after a share of the run; return its loss."""
        settings = self.settings
        num_steps = settings.early_steps if done < settings.flat_share else len(settings.step_weights)
        loss = self._loss(batch, num_steps)
        optimizer.step(loss, update, done)
        return loss

    def _state(self, run: RunOutcome, best: dict[str, torch.Tensor], optimizer: ScheduledAdamW) -> Resumed:
        """Return what a resumed run needs."""
        tensors = {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}
        if run.best != run.num_updates:
            tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
        return Resumed(run, tensors | optimizer.state() | {"scales": self.training.scales})

    def _restore(self, tensors: dict[str, torch.Tensor], optimizer: ScheduledAdamW) -> dict[str, torch.Tensor]:
        """Take over the tensors of ``_state``; return the best head's."""
        self.head.load_state_dict(_below(tensors, "head."))
        self.training.scales = tensors["scales"].to(self.training.device)
        optimizer.restore(tensors)
        best = _below(tensors, "best.")
        return best or {name: tensor.clone() for name, tensor in self.head.state_dict().items()}

    def _with_states(self, rows: PackedRows, first: int, is_repeated: bool) -> Iterator[TrainingBatch]:
        """Yield batches with the target's states from number ``first`` on, endlessly if repeated."""
        yield from self._one_pass(rows, first % (len(rows) // self.settings.rows_per_batch))
        while is_repeated:
            yield from self._one_pass(rows, 0)

    def _one_pass(self, rows: PackedRows, skipped: int) -> Iterator[TrainingBatch]:
        """Yield batches with the target's states, which are computed for several of them at once."""
        size, device = self.settings.rows_per_batch, self.training.device
        in_vocabulary = torch.zeros(self.head.config.vocab_size, dtype=torch.bool)
        in_vocabulary[self.head.target_ids.cpu()] = True
        num_steps = len(self.settings.step_weights)
        at_once, end = self._rows_at_once, len(rows) // size * size
        for start in range(skipped * size // at_once * at_once, end, at_once):
            chunk = rows[start : min(start + at_once, end)]
            states, there = self.target.of(chunk), chunk.to(device)
            visible = there.visible()
            for first in range(max(0, skipped * size - start), len(chunk), size):
                part = slice(first, first + size)
                indices = labels(chunk[part], in_vocabulary, num_steps).to(device, non_blocking=True)
                found = States(states.layers[part], states.final[part])
                yield TrainingBatch(there[part], visible[part], found, indices, chunk[part].num_answer_tokens)

    @property
    def _rows_at_once(self) -> int:
        """The number of rows whose states are computed in one pass."""
        size = self.settings.rows_per_batch
        return max(1, self.settings.rows_per_target_pass // size) * size

    def evaluate(self, other: Eagle3Training | None = None) -> Acceptance:
        """Measure the head on the held-out rows, or another one."""
        with self._autocast():
            rows = self.settings.rows_per_target_pass
            return held_out_acceptance(other or self.training, self.target, self.held_out, DEPTH, rows)

    def _evaluate(self, run: RunOutcome, update: int, best: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Note an evaluation; the weights to keep, these or those of before."""
        before = max((each.tokens_per_step for _, each in run.evaluations), default=0.0)
        found = self.evaluate()
        run.evaluations.append((update, found))
        if found.tokens_per_step < before:
            return best
        run.best = update
        return {name: tensor.clone() for name, tensor in self.head.state_dict().items()}

    def _loss(self, batch: TrainingBatch, num_steps: int) -> torch.Tensor:
        with self._autocast():
            return self.training.loss(batch, self.settings.step_weights[:num_steps])

    def _autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which passes compute in the target's dtype, over weights in float32."""
        dtype = self.training.output_rows.dtype
        return nullcontext() if dtype == torch.float32 else torch.autocast(self.training.device.type, dtype)

    def _groups(self) -> list[tuple[list[torch.nn.Parameter], float]]:
        """Groups of parameters with their learning rates; the first part that is in a parameter's name."""
        rates, rate = self.training.rates, self.settings.rate
        groups: dict[str, list[torch.nn.Parameter]] = {part: [] for part in rates}
        for name, parameter in self.head.named_parameters():
            if parameter.requires_grad:
                groups[next(part for part in rates if part in name)].append(parameter)
        return [(each, rates[part] * rate) for part, each in groups.items() if each]


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _check_size(rows: PackedRows, least: int) -> None:
    """Refuse fewer rows than a batch takes."""
    if len(rows) < least:
        raise ModelError(
            f"too little text to train on: {plural(len(rows), 'packed row')}, and an update takes {least}: generate "
            "more text"
        )
