"""The choice of a kernel: right whatever else runs, remembered if clear, checked again, and never believed blindly."""

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from specdec.machine.timing import Rounds, Timer
from specdec.models.weights.base import Kernel
from specdec.models.weights.choice import KernelChoice, Timing, choose
from specdec.models.weights.contest import Contest, num_shapes
from specdec.models.weights.layers import ProductLayer, product_layers

STOCK = 2.0**-20  # seconds of a stock product, by the clock of the tests
Disturbance = Callable[[str, int], float]


class Time:
    """A clock that is moved on by kernels, and by a stock product's seconds each time that it is read."""

    def __init__(self, disturbed: Disturbance = lambda *_: 1.0) -> None:
        self.now, self.today, self.waited, self.disturbed = 0.0, 1e9, 0.0, disturbed
        self.timing = Timing(Timer(self._read, lambda: {"main": self.waited}), lambda: self.today, num_cold=1)

    def _read(self) -> float:
        self.now += STOCK
        return self.now


class Ticking(Kernel):
    """Stock products that take so many times as long, and count themselves."""

    def __init__(self, time: Time, seconds: float, name: str = "", holds: bool = True, loss: float = 0.0) -> None:
        self.time, self.seconds, self.name, self.is_able, self.is_off = time, seconds, name, holds, loss
        self.count = 0

    def why_not(self, dtype: torch.dtype, device: torch.device) -> str:
        return ""

    def loss(self, dtype: torch.dtype) -> float:
        return self.is_off

    def pack(self, weight: torch.Tensor) -> Any | None:
        return weight.clone() if self.is_able else None

    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        self.time.now += STOCK * (self.seconds * self.time.disturbed(self.name, self.count) - 1.0)
        self.count += 1
        return linear(rows, packed, bias)

    def unpack(self, packed: Any) -> torch.Tensor:
        return packed.clone()


def layers_of(width: int = 8) -> list[ProductLayer]:
    return list(product_layers(torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.Linear(4, width))))


def ticking(time: Time, **seconds: float) -> dict[str, Ticking]:
    return {name: Ticking(time, each, name) for name, each in seconds.items()}


def chosen_in(
    folder: Path, kernels: dict[str, Ticking], needs_gain: bool = False, width: int = 8, joined: int = 0
) -> KernelChoice:
    layers = layers_of(width)
    timing = next(iter(kernels.values())).time.timing
    return choose(layers, [layers[:1]] * joined, kernels, needs_gain, folder, timing=timing)


def counted(kernels: dict[str, Ticking]) -> int:
    return sum(kernel.count for kernel in kernels.values())


def round_of(count: int) -> int:
    """Return the round that a product belongs to; 0 for those that aren't timed."""
    return (count % 13 - 1) % 6


def in_rounds(name: str, rounds: set[int], factor: float, attempts: int = 1) -> Disturbance:
    """Slow one contender down in some rounds of every shape, in the first attempts."""
    return lambda each, count: factor if each == name and round_of(count) in rounds and count < 26 * attempts else 1.0


def test_a_choice_is_remembered_for_a_models_shapes(tmp_path: Path) -> None:
    kernels = ticking(Time(), slow=3.0, fast=2.0)
    assert chosen_in(tmp_path, kernels).name == "fast"
    measured = counted(kernels)
    assert measured
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert counted(kernels) == measured
    chosen_in(tmp_path, kernels, width=16)
    assert counted(kernels) > measured
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.json"]


def test_each_shape_that_is_measured_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    layers = [*layers_of(), *layers_of()]
    kernels = ticking(Time(in_rounds("fast", {3, 4, 5}, 2.0)), slow=3.0, fast=2.0)  # so that it is measured twice
    for _ in range(2):
        choose(layers, [], kernels, False, tmp_path, lambda: told.append("shape"), kernels["fast"].time.timing)
        assert len(told) == num_shapes(layers) == 2


@pytest.mark.parametrize(
    "disturbed",
    [
        in_rounds("fast", {3, 4, 5}, 2.0),
        in_rounds("fast", {1, 3, 5}, 50.0),
        in_rounds("slow", {1, 2, 4}, 9.0),
        lambda _, count: 3.0 if count > 13 else 1.0,
        lambda _, count: 3.0 if round_of(count) > 2 else 1.0,
        lambda name, count: 3.0 if round_of(count) == (1 if name == "fast" else 2) else 1.0,
    ],
    ids=[
        "the faster one's",
        "every second",
        "the slower one's",
        "from the second shape on",
        "from a round on",
        "bursts",
    ],
)
def test_what_others_do_does_not_decide(tmp_path: Path, disturbed: Disturbance) -> None:
    kernels = ticking(Time(disturbed), slow=2.4, fast=2.0)
    assert chosen_in(tmp_path, kernels).name == "fast"
    measured = counted(kernels)
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert counted(kernels) == measured, "a clear verdict is remembered"


def test_an_unclear_contest_is_measured_anew_each_time_until_it_is_clear(tmp_path: Path) -> None:
    time = Time(in_rounds("fast", {2, 3, 4, 5}, 2.0, attempts=3))
    kernels = ticking(time, slow=2.4, fast=2.0)
    assert chosen_in(tmp_path, kernels).name == "fast", "it has been undisturbed in some rounds"
    assert counted(kernels) > 2 * 26 * 2, "three attempts"
    time.disturbed = lambda *_: 1.0
    for _ in range(2):
        measured = counted(kernels)
        assert chosen_in(tmp_path, kernels).name == "fast"
    assert counted(kernels) == measured


class Crowded(Ticking):
    """A kernel that has to wait for a processor in each product."""

    def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        self.time.waited += STOCK * self.time.disturbed(self.name, self.count) - STOCK
        return super().multiply(rows, packed, bias)


def test_what_other_programs_kept_waiting_is_not_remembered_and_stock_products_do_not_win_by_it(tmp_path: Path) -> None:
    time = Time(lambda *_: 3.0)
    kernels: dict[str, Ticking] = {"kernel": Crowded(time, 0.5), "slower": Crowded(time, 0.6)}
    assert chosen_in(tmp_path, kernels, needs_gain=True).name == "kernel", "which takes half as long again as stock"
    time.disturbed = lambda *_: 1.0
    for _ in range(2):
        measured = counted(kernels)
        assert chosen_in(tmp_path, kernels, needs_gain=True).name == "kernel"
    assert counted(kernels) == measured


def test_rounds_in_which_others_ran_are_left_out(tmp_path: Path) -> None:
    """The faster one is disturbed in most rounds, and waits for it."""
    time = Time(lambda name, count: 9.0 if name == "fast" and round_of(count) in {1, 2, 3, 5} else 1.0)
    kernels: dict[str, Ticking] = {"slow": Crowded(time, 2.4, "slow"), "fast": Crowded(time, 2.0, "fast")}
    assert chosen_in(tmp_path, kernels).name == "fast"
    measured = counted(kernels)
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert counted(kernels) == measured


def test_a_contest_ends_in_time_where_everything_is_slow(tmp_path: Path) -> None:
    time = Time(lambda *_: 2.0**16)  # a sixteenth of a second, in units of stock products
    kernels = ticking(time, slow=2.4, fast=2.0)
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert kernels["slow"].count == 2 * (1 + 2 * 3), "a first call, and for each number of rows another and two rounds"


def test_a_contest_on_a_crowded_machine_ends_after_the_first_shape(tmp_path: Path) -> None:
    time = Time(lambda *_: 2.0**19)
    kernels: dict[str, Ticking] = {name: Crowded(time, seconds) for name, seconds in (("slow", 2.4), ("fast", 2.0))}
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert kernels["slow"].count == 1 + 2 * 3
    time.disturbed = lambda *_: 1.0
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert kernels["slow"].count > 7 + 7, "both shapes, as it isn't remembered"


def test_a_choice_that_a_busy_machine_made_is_found_out(tmp_path: Path) -> None:
    """All rounds of the faster one are disturbed, so the verdict is clear and wrong; ten minutes later all is quiet."""
    time = Time(lambda name, _: 2.0 if name == "fast" else 1.0)
    kernels = ticking(time, slow=2.4, fast=2.0)
    assert chosen_in(tmp_path, kernels).name == "slow"
    time.disturbed = lambda *_: 1.0
    assert chosen_in(tmp_path, kernels).name == "slow"
    time.today += 601.0
    assert chosen_in(tmp_path, kernels).name == "fast"
    measured = counted(kernels)
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert counted(kernels) == measured


def test_a_choice_that_holds_is_checked_ever_more_rarely_and_cheaply(tmp_path: Path) -> None:
    time = Time()
    kernels = ticking(time, slow=2.4, fast=2.0)
    chosen_in(tmp_path, kernels)
    of_contest, checks = counted(kernels), list[float]()
    for _ in range(50):
        time.today += 7200.0
        before = counted(kernels)
        assert chosen_in(tmp_path, kernels).name == "fast"
        if counted(kernels) > before:
            checks.append(time.today)
            assert counted(kernels) - before < of_contest / 2
    assert 3 < len(checks) < 7
    gaps = [later - sooner for sooner, later in pairwise(checks)]
    assert gaps == sorted(gaps)


def test_a_check_that_others_disturb_changes_nothing_and_a_clock_that_was_set_back_brings_one(tmp_path: Path) -> None:
    time = Time()
    kernels = ticking(time, slow=2.4, fast=2.0)
    chosen_in(tmp_path, kernels)
    time.today -= 1e6
    time.disturbed = lambda name, count: 9.0 if name == "fast" and count % 2 else 1.0
    before = counted(kernels)
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert 0 < counted(kernels) - before < 26
    time.disturbed = lambda *_: 1.0
    before = counted(kernels)
    assert chosen_in(tmp_path, kernels).name == "fast"
    assert counted(kernels) == before


@pytest.mark.parametrize(("seconds", "expected"), [(0.97, ""), (0.9, "kernel"), (1.1, "")])
def test_stock_products_stay_unless_a_kernel_gains(tmp_path: Path, seconds: float, expected: str) -> None:
    kernels = ticking(Time(), kernel=seconds)
    assert chosen_in(tmp_path, kernels, needs_gain=True).name == expected
    assert chosen_in(tmp_path, kernels).name == "kernel"


@pytest.mark.parametrize(("seconds", "expected"), [(1.7, "exact"), (1.5, "lossy")])
def test_a_kernel_that_loses_digits_must_gain_more(tmp_path: Path, seconds: float, expected: str) -> None:
    time = Time()
    kernels = {"lossy": Ticking(time, seconds, loss=1e-8), "exact": Ticking(time, 2.0)}
    assert chosen_in(tmp_path, kernels).name == expected


@pytest.mark.parametrize("factor", [1.0, 3.0], ids=["joined is one product", "joined is slow"])
def test_layers_are_joined_where_that_is_faster_whatever_else_runs(tmp_path: Path, factor: float) -> None:
    layers = list(product_layers(torch.nn.Sequential(*(torch.nn.Linear(8, 4, bias=False) for _ in range(2)))))
    time = Time(lambda _, count: 5.0 if count % 20 == 0 else 1.0)

    class Wide(Ticking):
        def multiply(self, rows: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
            self.seconds = 2.0 * (factor if len(packed) == 8 else 1.0)
            return super().multiply(rows, packed, bias)

    kernel, counts = Wide(time, 2.0), list[int]()
    for _ in range(2):
        chosen = choose(layers, [layers], {"wide": kernel}, False, tmp_path, timing=time.timing)
        assert chosen.joins == (factor == 1.0)
        counts.append(kernel.count)
    assert counts[0] == counts[1]


def test_a_kernel_that_cannot_hold_the_matrices_is_not_chosen(tmp_path: Path) -> None:
    time = Time()
    kernels = {"cannot": Ticking(time, 1.0, holds=False), "can": Ticking(time, 2.0)}
    for _ in range(2):
        assert chosen_in(tmp_path, kernels).name == "can"
        assert chosen_in(tmp_path, {"cannot": kernels["cannot"]}, needs_gain=True).name == ""
        time.today += 1e6


def remembered_by(write: Callable[[Path], object], folder: Path) -> int:
    """Let a file be written in place of a good one; return the products that the next choice takes, which is right."""
    kernels = ticking(Time(), slow=2.4, fast=2.0)
    chosen_in(folder, kernels, joined=1)
    write(folder / "kernels.json")
    before = counted(kernels)
    assert chosen_in(folder, kernels, joined=1).name == "fast"
    measured = counted(kernels)
    assert chosen_in(folder, kernels, joined=1).name == "fast"
    assert counted(kernels) == measured, "it is whole again"
    return measured - before


def replacing(old: str, new: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return write


@pytest.mark.parametrize(
    "write",
    [
        *(lambda path, text=text: path.write_text(text) for text in ("", "[]", "{", "null", '{"a": 1}', "\x00")),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_text(path.read_text()[:-30]),
        replacing('"winner": "fast"', '"winner": "nonesuch"'),
        replacing('"winner": "fast"', '"winner": "slow"'),
        replacing('"winner": "fast"', '"winner": 3'),
        replacing('"winner": "fast",', ""),
        replacing('"num_confirmed": 0', '"num_confirmed": NaN'),
        replacing('"checked_at": 1000000000.0', '"checked_at": Infinity'),
        replacing('"verdicts"', '"verdict"'),
    ],
)
def test_a_damaged_file_is_made_anew(tmp_path: Path, write: Callable[[Path], object]) -> None:
    assert remembered_by(write, tmp_path) > 0


def test_a_sound_file_is_not_made_anew(tmp_path: Path) -> None:
    assert remembered_by(lambda path: path.write_text(json.dumps(json.loads(path.read_text()))), tmp_path) == 0


def test_two_models_files_are_one_and_neither_is_lost(tmp_path: Path) -> None:
    kernels = ticking(Time(), slow=2.4, fast=2.0)
    for width in (8, 16, 8, 16):
        chosen_in(tmp_path, kernels, width=width)
        measured = counted(kernels)
    chosen_in(tmp_path, kernels, width=8)
    assert counted(kernels) == measured


def test_where_nothing_can_be_written_it_is_measured_each_time(tmp_path: Path) -> None:
    taken, folder = tmp_path / "a file", tmp_path / "folder"
    taken.write_text("")
    os.makedirs(folder / "kernels.json")
    for place in (taken / "below", folder):
        kernels = ticking(Time(), slow=2.4, fast=2.0)
        for _ in range(2):
            before = counted(kernels)
            assert chosen_in(place, kernels).name == "fast"
            assert counted(kernels) > before
    assert {each.name for each in tmp_path.iterdir()} == {"a file", "folder"}
    assert [each.name for each in folder.iterdir()] == ["kernels.json"]


def test_an_attempt_that_ends_early_leaves_the_verdict_unclear() -> None:
    disturbed = Rounds({"a": [1.0, 2.0, 1.0], "b": [2.0, 1.0, 2.0]}, is_quiet=False)
    attempts = iter([(("a", "b"), [disturbed, disturbed]), (("a", "b"), [disturbed])])
    verdict = Contest._settled(SimpleNamespace(timer=Timer(clock=lambda: 0.0)), lambda _: next(attempts), ("a", "b"))  # type: ignore[arg-type]  # no other part of it is asked
    assert not verdict.is_clear
