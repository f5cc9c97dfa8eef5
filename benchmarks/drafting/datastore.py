"""A datastore's index: time to open, memory, and time per node looked up.

    python -m benchmarks datastore INDEX --text FOLDER [--model smollm2] [--lookups 2000]

Each lookup takes the tokens at a random place of a text in the folder: the match of the last sixteen, its
continuations, and the same for the next three tokens, as a draft does. Linux only: memory is the process's own count.
"""

import argparse
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path

from specdec_datastore.index.lookup import Index

from specdec.apps.cli.options import load_tokenizer

MIB = 2**20
DEPTH, DRAFTED = 16, 3


def resident_bytes() -> int:
    """This process's resident bytes, page by page: the counters in ``/proc/self/status`` lag too far for this."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return 1024 * int(rollup.partition("Rss:")[2].split()[0])


def places(folder: Path, model: str, count: int) -> list[list[int]]:
    """Return runs of tokens from random places of a folder's texts."""
    rng, tokenizer = random.Random(0), load_tokenizer(model)
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.rglob("*.py"))[:400]]
    encoded = [ids for ids in tokenizer(texts, add_special_tokens=False)["input_ids"] if len(ids) > DEPTH + DRAFTED]
    starts = [(ids, rng.randrange(len(ids) - DEPTH - DRAFTED)) for ids in rng.choices(encoded, k=count)]
    return [ids[start : start + DEPTH + DRAFTED] for ids, start in starts]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("index", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="a folder of texts to look for, not those indexed")
    parser.add_argument("--model", default="smollm2", help="whose tokenizer the index was made with")
    parser.add_argument("--lookups", type=int, default=2000)
    given = parser.parse_args()
    runs = places(given.text, given.model, given.lookups)
    Index(given.index, DEPTH).close()  # what importing and the first call bring isn't the index's
    before, begun = resident_bytes(), time.perf_counter()
    index = Index(given.index, DEPTH)
    opened = time.perf_counter() - begun
    held = [resident_bytes() - before]
    roots, nodes, found, lengths = [], [], 0, []
    for run in runs:
        times, match = [time.perf_counter()], index.start
        for token in run[:DEPTH]:
            match = index.follow(match, token)
        times.append(time.perf_counter())
        for token in run[DEPTH:]:
            followers = list(index.followers(match))
            found += any(token == each for follower in followers[:3] for each, _ in follower.ranked[:6])
            match = index.follow(match, token)
            times.append(time.perf_counter())
        lengths.append(max(match.length, match.ranges[0][0] if match.ranges else 0))
        roots.append(times[1] - times[0])
        nodes += [after - earlier for earlier, after in pairwise(times[1:])]
        if len(lengths) % 10 == 0:
            held.append(resident_bytes() - before)
    print(
        f"{index.header.num_documents:,} documents, {index.header.num_tokens:,} tokens, opened in {1e3 * opened:.2f} ms"
    )
    print(f"MiB over before: {held[0] / MIB:.1f} open, {held[-1] / MIB:.1f} in the end, {max(held) / MIB:.1f} at most")
    for name, seconds in (("a context of 16", roots), ("a node", nodes)):
        ranked = sorted(1e6 * each for each in seconds)
        print(f"{name}: {statistics.median(ranked):.0f} µs, 95 % within {ranked[int(0.95 * len(ranked))]:.0f} µs")
    print(f"right among six candidates: {found / len(nodes):.2f}; {statistics.mean(lengths):.1f} tokens matched")


if __name__ == "__main__":
    main()
