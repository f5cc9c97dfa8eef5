"""The points of a learning curve, as many as a time limit allows."""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.head_run import Corpus, Point, on_prompts, train_point
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.settings import TrainingSettings

LARGE = 2_000_000  # answer tokens from which on batches are twice as large
ROWS_AT_ONCE = 64  # of which a GPU computes the target's states
MARGIN = 1.1
RESERVE = 8.0  # seconds
LEAST_SHARE = 0.5  # of a point's tokens, below which it is left out


class Results:
    """A JSON file that is written anew after each part, and a line on the terminal."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.began, self.limit = folder, time.perf_counter(), seconds
        folder.mkdir(parents=True, exist_ok=True)
        self.values: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__, "points": []}

    def left(self) -> float:
        return self.limit - (time.perf_counter() - self.began)

    def write(self, line: str = "", **values: Any) -> None:
        self.values |= values | {"seconds": time.perf_counter() - self.began}
        text = json.dumps(self.values, indent=1) + "\n"
        (self.folder / "curve.json").write_text(text, encoding="utf-8")
        print(f"{self.limit - self.left():6.1f} s  {line}", flush=True)


class Curve:
    """Trains and measures heads; the one that gives most tokens per step is kept as a folder."""

    def __init__(self, arguments: argparse.Namespace, corpus: Corpus, results: Results) -> None:
        self.arguments, self.corpus, self.results = arguments, corpus, results
        self.best = 0.0
        self.rate: float = arguments.rates[0]
        self.seconds_per_token = 0.0

    def run(self) -> None:
        """Find the learning rate, then go through the points and the vocabularies."""
        arguments = self.arguments
        if arguments.probe:
            scores = {rate: self.point(arguments.probe, f"rate {rate}", rate=rate) for rate in arguments.rates}
            self.rate = max(scores, key=lambda rate: scores[rate])
            self.results.write(f"rate {self.rate}", rate=self.rate)
        for count in arguments.points:
            self.point(count, passes=arguments.passes)
        for vocabulary in arguments.vocabularies:
            self.point(arguments.vocabulary_tokens, f"vocabulary of {vocabulary}", vocabulary=vocabulary)

    def affordable(self) -> float:
        """The answer tokens that there is time for."""
        return max(0.0, self.results.left() - RESERVE) / (MARGIN * max(1e-9, self.seconds_per_token))

    def point(self, count: int, name: str = "", vocabulary: int = 0, rate: float = 0.0, passes: int = 1) -> float:
        """Train and measure a head; return its tokens per step on held-out text, 0 if it was left out."""
        possible = int(min(count, self.corpus.text.num_answer_tokens, self.affordable()))
        name = f"{possible} {name}".strip()
        if possible < LEAST_SHARE * count:
            self.results.write(f"{count} {name}: left out for lack of time or text")
            return 0.0
        settings = self.settings(possible, rate or self.rate)
        point = Point(name, possible, vocabulary or self.arguments.vocabulary, settings, passes)
        try:
            head, measured = train_point(self.corpus, point, self.arguments.seed)
            if self.corpus.answers:
                measured["prompts"] = on_prompts(head, self.corpus.answers)
        except RuntimeError as error:  # such as a lack of memory; the points so far are kept
            self.results.write(f"{name}: {type(error).__name__}: {error}"[:1000])
            return 0.0
        self.seconds_per_token = sum(measured["seconds"].values()) / max(1, measured["num_answer_tokens"])
        return self.noted(point, head, measured)

    def settings(self, count: int, rate: float) -> TrainingSettings:
        batch = self.arguments.batch * (2 if count >= LARGE else 1)
        at_once = ROWS_AT_ONCE if self.corpus.model.device.type == "cuda" else batch
        return TrainingSettings(rows_per_batch=batch, rows_per_target_pass=at_once, rate=rate)

    def noted(self, point: Point, head: Eagle3Training, measured: dict[str, Any]) -> float:
        """Write a point's results, and its head if it is the best so far."""
        held_out = float(measured["evaluations"][-1][1]["tokens_per_step"])
        score = measured["prompts"]["tokens_per_step"]["tree of 8"] if self.corpus.answers else held_out
        if score > self.best and point.draft_vocab_size == self.arguments.vocabulary:
            self.best = score
            head.write(self.arguments.out / "head")
            self.results.values["best"] = point.name
        self.results.values["points"].append(measured)
        took = measured["seconds"]["training"]
        self.results.write(f"{point.name}: held out {held_out:.3f}, tree of 8 {score:.3f}, trained for {took:.1f} s")
        return held_out
