"""A head's training as one HTML page: curves, and speeds with and without the head on this machine."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specdec.apps.comparison.figures.plots import by_category, draw_all, speed_ups, styles_of
from specdec.apps.comparison.page_environment import page_environment
from specdec.apps.comparison.prompts import EvaluationPrompt, demo_prompts, select
from specdec.apps.comparison.results import Comparison
from specdec.apps.comparison.session import ComparisonSession
from specdec.apps.pictures.training_figures import curves
from specdec.heads.head_facts import Speeds, setup_of
from specdec.heads.training import TrainedHead
from specdec.heads.training.disk import writing_to
from specdec.heads.training.progress import rounded
from specdec.machine.extras import needs
from specdec.machine.facts import machine_facts

_NEW_TOKENS = 64
_WITHOUT, _WITH, _ALONE = "auto without the head", "auto with the head", "the head alone"
_MODULES = "jinja2", "matplotlib", "scipy.stats"


def check_training_report() -> None:
    """Check that a report can be made.

    Raises:
        RequestError: a library isn't installed.
    """
    for module in _MODULES:
        needs(module, "compare", "a report")


def measure_head(
    model: Any,
    tokenizer: Any,
    folder: Path,
    seconds: float,
    prompts: Sequence[EvaluationPrompt] | None = None,
    **stages: Any,
) -> tuple[Comparison, str]:
    """Decode a prompt of each category without drafts, with ``auto``'s other sources, with the head, and with both.

    Returns:
        The comparison, and the setup that it holds for; see ``setup_of``.

    Args:
        model: the target.
        tokenizer: the model's.
        folder: the head's.
        seconds: of all; no further run starts after this time.
        prompts: to decode; None for the built-in ones.
        stages: ``backend``, ``numerics`` and ``weights``, as of ``Generator``.

    Raises:
        SpecdecError: a strategy can't decode the prompts, or not every one has decoded one in this time.
    """
    head = f"eagle3:head={folder}"
    strategies = {_WITHOUT: "auto:head=false", _ALONE: head, _WITH: f"auto+{head}"}
    chosen = select(demo_prompts() if prompts is None else prompts, per_category=1)
    ends_at = time.monotonic() + seconds
    with ComparisonSession(
        model, strategies, chosen, tokenizer=tokenizer, max_new_tokens=_NEW_TOKENS, **stages
    ) as session:
        comparison = session.run(seconds=ends_at - time.monotonic())
        return comparison, setup_of(session.model, session.generators[_WITH].weights.engine)


def speeds_of(comparison: Comparison) -> Speeds:
    """Return the speeds that ``measure_head`` found."""
    ratios = {row.strategy: row.speed_up.value for row in comparison.rows}
    is_faster = comparison.speed_up(_WITH, over=_WITHOUT).is_faster
    return Speeds(without=ratios[_WITHOUT], with_head=ratios[_WITH], alone=ratios[_ALONE], is_faster=is_faster)


def write_training_report(
    path: Path, head: TrainedHead, comparison: Comparison | None, facts: dict[str, str], compare_command: str
) -> None:
    """Write the page.

    Args:
        path: the file.
        head: the trained head.
        comparison: from ``measure_head``; without it the page has curves alone.
        facts: the model's name (``model``) and what repeats the training, by name.
        compare_command: compares decoding with and without the head.

    Raises:
        RequestError: a library is missing, or the file can't be written.
    """
    check_training_report()
    plots = curves(head.run)
    styles = styles_of([comparison] if comparison else [])
    if comparison is not None:
        makers = [partial(make, comparison, styles) for make in (by_category, speed_ups)]
        plots += draw_all(makers, salt="specdec head")
    page = (
        page_environment("specdec.apps.pictures")
        .get_template("training.html.j2")
        .render(
            head=head,
            num_answer_tokens=rounded(head.num_answer_tokens, 3),
            comparison=comparison,
            speeds="" if comparison is None else _speeds(comparison),
            styles=styles,
            plots=plots,
            compare_command=compare_command,
            facts=facts | {"machine": ", ".join(machine_facts().values())},
        )
    )
    with writing_to(path.parent):
        path.write_text(page, encoding="utf-8")


def _speeds(comparison: Comparison) -> str:
    """Return how fast ``auto`` is with and without the head."""
    speeds = speeds_of(comparison)
    return (
        f"With the head, auto decodes {speeds.with_head:.2f} times as fast as plain decoding; without it, "
        f"{speeds.without:.2f} times."
    )
