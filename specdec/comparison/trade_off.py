"""A search's trade-off as a picture: what a step costs against what it brings."""

from pathlib import Path

import numpy as np

from specdec.comparison.extras import needs
from specdec.comparison.tune import Tuning

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#777777"  # Okabe and Ito's, which the colour-blind can tell apart


def save_trade_off(path: Path, tuning: Tuning) -> None:
    """Every setting that was screened, by milliseconds and tokens per step, as SVG or PNG by the file's ending.

    Along a dashed line the speed is the same; the steeper the line, the faster.
    """
    figure = needs("matplotlib.figure").Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    milliseconds = np.array([1000 * trial.seconds_per_step(tuning.costs) for trial in tuning.trials])
    tokens = np.array([trial.tokens_per_step for trial in tuning.trials])
    plain = 1000 * tuning.costs.plain
    widest = 1.05 * float(milliseconds.max())
    for gain in _gains(float(max(tokens / milliseconds)) * plain):
        axes.plot([0, widest], [0, gain * widest / plain], "--", color=_GREY, linewidth=0.7)
        end = min(widest, 1.1 * float(tokens.max()) * plain / gain)  # where the line leaves the picture
        place = (end, gain * end / plain)
        axes.annotate(f"{gain:g}×", place, fontsize=8, color=_GREY, ha="left", va="bottom")
    axes.scatter(plain, 1.0, s=40, marker="s", color=_GREY, label="plain decoding")
    axes.scatter(milliseconds, tokens, s=18, color=_BLUE, label="screened")
    finalists = [trial for trial in tuning.trials if trial.strategy in tuning.comparison.plan.strategies]
    axes.scatter(
        [1000 * trial.seconds_per_step(tuning.costs) for trial in finalists],
        [trial.tokens_per_step for trial in finalists],
        s=60, facecolors="none", edgecolors=_ORANGE, label="run in earnest",
    )  # fmt: skip
    (best,) = (trial for trial in finalists if trial.strategy == tuning.strategy)
    axes.scatter(
        1000 * best.seconds_per_step(tuning.costs), best.tokens_per_step, s=150, marker="*", color=_ORANGE, label="best"
    )
    axes.set_title(f"{tuning.strategy}: {tuning.gain.value:.2f} times plain decoding, measured", fontsize=10, wrap=True)
    axes.set_xlabel("milliseconds per step, predicted from its nodes")
    axes.set_ylabel("tokens per step")
    axes.set_xlim(0, 1.08 * widest)
    axes.set_ylim(0.9, 1.15 * float(tokens.max()))
    axes.legend(fontsize=8, loc="lower right", title="dashed: times plain decoding", title_fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _gains(most: float) -> list[float]:
    """Round gains to draw lines for."""
    return [gain for gain in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0) if 0.4 * most <= gain <= 1.15 * most]
