"""Scores of lm-eval: by a server's ``local-completions``, and by its own ``hf`` backend on the same folder."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

import yaml
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

QUESTIONS = [
    {"text": "import", "choices": [" os", " heapq", " banana"], "label": 0},
    {
        "text": "def merge(first, second):\n    return",
        "choices": [" first", " None\n", " [*first, *second]"],
        "label": 2,
    },
    {"text": "class Queue:\n    def __init__(", "choices": ["self", "self, maxsize=0", "x"], "label": 1},
    {"text": "for index in", "choices": [" range(10)", " while"], "label": 0},
]
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}],
    },
    "perplexity": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}{{choices[0]}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "writing": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def evaluated(tasks: TaskManager, model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Each sample's responses, by task."""
    found = simple_evaluate(
        model=model, model_args=arguments, tasks=[*TASKS], task_manager=tasks, log_samples=True, bootstrap_iters=0
    )
    return {
        name: [sample["resps"] for sample in sorted(samples, key=lambda each: each["doc_id"])]
        for name, samples in found["samples"].items()
    }


def main(url: str, model: str, folder: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        data = Path(home, "data.jsonl")
        data.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
        for name, task in TASKS.items():
            whole = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
            Path(home, f"{name}.yaml").write_text(yaml.safe_dump({**whole, "test_split": "test", **task}))
        tasks = TaskManager(include_path=home, include_defaults=False)
        served = {"model": model, "base_url": f"{url}/v1/completions", "tokenizer": folder, "num_concurrent": 1}
        own = {"pretrained": folder, "dtype": "float32", "device": "cpu", "batch_size": 1, "add_bos_token": False}
        print(json.dumps({"served": evaluated(tasks, "local-completions", served), "own": evaluated(tasks, "hf", own)}))


main(*sys.argv[1:])
