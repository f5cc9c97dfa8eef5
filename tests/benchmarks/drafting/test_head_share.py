"""The shapes that the share of a head is measured with."""

from pathlib import Path

from benchmarks.drafting.head_share import DEPTH, NUM_NODES, SMALL, random_model, write_random_head
from specdec import Generator
from specdec.heads.strategies.eagle3 import Eagle3Proposer
from specdec.record import StepRecord


def test_a_random_head_drafts_as_many_nodes_and_levels_as_the_table_says(tmp_path: Path) -> None:
    model, records = random_model(SMALL, "float32"), list[StepRecord]()
    write_random_head(model, tmp_path)
    proposer = Eagle3Proposer(head=tmp_path, top_k=4, depth=DEPTH, num_nodes=NUM_NODES, min_probability=0.0)
    with Generator(model, proposer=proposer, numerics="fast", weights="stock", backend="hf") as generator:
        generator.generate([5, 6, 7], max_new_tokens=8, eos_token_id=(), on_step=records.append)
        trees = [outcome.tree for record in records[1:-DEPTH] for outcome in record.outcomes]
        assert trees
        assert {tree and len(tree) for tree in trees} == {1 + NUM_NODES}
