"""Spec-Bench's own table: its tasks, and its figures against sums done by hand."""

import json
from pathlib import Path

import pytest

from specdec.apps.comparison import Comparison
from specdec.apps.comparison.report import write_report
from specdec.apps.comparison.spec_bench import NOTE
from tests.apps.comparison.made import plan_of, run_of

# category, tokens, plain decoding's seconds, a's seconds, tokens of each of a's steps
RUNS = [
    ("rag", 6, 6.0, 3.0, (4, 2)),
    ("writing", 6, 6.0, 2.0, (3, 3)),
    ("verse", 6, 6.0, 60.0, (1,) * 6),  # no category of Spec-Bench's
    ("coding", 2, 10.0, 2.0, (1, 1)),
]


def made(categories: list[str] | None = None) -> Comparison:
    plan = plan_of(["plain", "a"], num_prompts=len(RUNS))
    named = categories or [category for category, *_ in RUNS]
    plan = plan.model_copy(
        update={"prompts": tuple((category, f"p{place}", (1, place)) for place, category in enumerate(named))}
    )
    runs = []
    for prompt, (_, num_tokens, plain, own, steps) in enumerate(RUNS):
        tokens = tuple(range(num_tokens))
        runs += [run_of("plain", prompt, 0, plain, tokens), run_of("a", prompt, 0, own, tokens, steps)]
    return Comparison(plan, runs)


def test_cells_are_all_tokens_over_all_steps_and_seconds_of_a_tasks_prompts() -> None:
    table = made().spec_bench()
    assert table is not None
    assert table.columns == ("multi-turn conversation", "retrieval-augmented generation", "overall")
    assert list(table.rows) == ["plain", "a"]
    conversation, rag, overall = table.rows["a"]
    assert (conversation.tokens_per_step, rag.tokens_per_step, overall.tokens_per_step) == (8 / 4, 6 / 2, 14 / 6)
    assert conversation.speed_up == pytest.approx((8 / 4) / (8 / 16))
    assert rag.speed_up == pytest.approx(2.0)
    assert overall.speed_up == pytest.approx((14 / 7) / (14 / 22))  # neither the mean of tasks nor with the verse
    assert {(cell.tokens_per_step, cell.speed_up, cell.ratio_of_means) for cell in table.rows["plain"]} == {(1, 1, 1)}


def test_the_ratio_of_means_is_as_spec_benchs_script_takes_it() -> None:
    table = made().spec_bench()
    assert table is not None
    own, plain = [6 / 3, 6 / 2, 2 / 2], [6 / 6, 6 / 6, 2 / 10]
    assert table.rows["a"][-1].ratio_of_means == pytest.approx(sum(own) / sum(plain))


def test_every_category_of_the_set_has_its_task() -> None:
    tasks = {
        "translation": "translation",
        "summarization": "summarization",
        "qa": "question answering",
        "math_reasoning": "mathematical reasoning",
        "rag": "retrieval-augmented generation",
    } | dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
        "multi-turn conversation",
    )
    for category, task in tasks.items():
        table = made([category] * len(RUNS)).spec_bench()
        assert table is not None
        assert table.columns == (task, "overall")


def test_prompts_of_other_categories_have_no_such_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    comparison = made(["code", "prose", "verse", "Writing"])
    assert comparison.spec_bench() is None
    assert comparison.to_json()["spec_bench"] is None
    write_report(tmp_path / "report.html", [comparison], None)
    assert "Spec-Bench" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_it_is_in_the_json_and_on_the_page_with_how_it_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    comparison = made()
    told = json.loads(json.dumps(comparison.to_json()))["spec_bench"]["a"]
    assert list(told) == ["multi-turn conversation", "retrieval-augmented generation", "overall"]
    assert told["retrieval-augmented generation"] == {"tokens_per_step": 3.0, "speed_up": 2.0, "ratio_of_means": 2.0}
    write_report(tmp_path / "report.html", [comparison], None)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<th scope="col" class="task">retrieval-augmented generation</th>' in page
    assert "<td>2.00<br>4.00×</td><td>3.00<br>2.00×</td><td>2.33<br>3.14×</td></tr>" in page
    assert NOTE.replace("'", "&#39;") in page
