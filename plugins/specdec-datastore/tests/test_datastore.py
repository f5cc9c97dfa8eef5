"""The datastore: what a corpus goes on with, whatever it is drafted for."""

import doctest
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from specdec_datastore import datastore
from specdec_datastore.datastore import DatastoreEngine, DatastoreProposer
from specdec_datastore.index.building import build_index
from specdec_datastore.index.lookup import Index, Match
from specdec_datastore.tokenizer_fingerprint import TokenizerFingerprint

from specdec import Budget, Generator, ModelError, PluginError, Request, RequestError, ToyModel
from specdec.decoding import TokenView
from specdec.sampling import Randomness
from specdec.strategies import MergedProposer, SuffixProposer
from specdec.testing import check_proposer, toy_host
from specdec.tree import DraftTree
from tests.support.byte_tokenizer import trained

ROOMY = Budget(99, 99, 99)
MODEL = ToyModel.random(6, order=2, sharpness=3.0, seed=5)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    """An index of two texts that the model writes."""
    plain = Generator(MODEL, proposer="autoregressive")
    texts = [plain.generate(prompt, max_new_tokens=200, temperature=1.0, seed=9).token_ids for prompt in ([1, 2], [3])]
    build_index(tmp_path / "index", texts)
    return tmp_path / "index"


def drafted(path: Path, tokens: list[int], vocab_size: int = 100, **options: float) -> DraftTree:
    engine = DatastoreProposer(path=path, **options).bind(toy_host(vocab_size, reads_q=False))  # type: ignore[arg-type]
    request = Request(TokenView(tokens), 1, vocab_size, frozenset(), 0.0, Randomness(0).stream("test"))
    try:
        return engine.start(request).propose(ROOMY)
    finally:
        engine.close()


def test_the_longest_run_is_continued_first_and_shorter_ones_behind_it(tmp_path: Path) -> None:
    build_index(tmp_path / "index", [[1, 2, 3, 4, 5, 9], [7, 3, 6], [8, 3, 6]])
    tree = drafted(tmp_path / "index", [50, 1, 2, 3], min_probability=0.0)
    assert tree.path(1) == [4]
    assert {4, 6} <= {tree.tokens[node] for node in range(len(tree)) if tree.parents[node] == 0}
    assert [4, 5, 9] in [tree.path(node) for node in range(len(tree))]


def test_what_is_committed_step_by_step_is_found_as_if_it_had_been_there(tmp_path: Path) -> None:
    build_index(tmp_path / "index", [list(range(1, 40)), [5, 6, 30]])
    engine = DatastoreProposer(path=tmp_path / "index").bind(toy_host(50, reads_q=False))
    tokens = [3]
    drafter = engine.start(Request(TokenView(tokens), 1, 50, frozenset(), 0.0, Randomness(0).stream("test")))
    for added in ([4, 5], [6], list(range(10, 30)), [5, 6]):
        drafter.propose(ROOMY)
        tokens += added
        alone = drafted(tmp_path / "index", tokens, 50)
        assert [alone.path(node) for node in range(len(alone))] == [
            drafter.propose(ROOMY).path(node) for node in range(len(alone))
        ]
    engine.close()


def test_of_a_long_prompt_only_the_end_is_looked_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_followed = 0
    follow = Index.follow

    def counted(index: Index, match: Match, token: int) -> Match:
        nonlocal num_followed
        num_followed += 1
        return follow(index, match, token)

    monkeypatch.setattr(Index, "follow", counted)
    drafted(path, [1, 2, 3] * 1000, num_nodes=2)
    assert num_followed <= 16 + 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("parts", ["alone", "suffix", "suffix+token_recycling", "auto"])
def test_the_text_is_plain_decodings_alone_in_batches_and_in_merges(path: Path, temperature: float, parts: str) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 60, "temperature": temperature, "seed": 3}
    prompts = [[1, 2], [3, 3, 3], [5]]
    plain = Generator(MODEL, proposer="autoregressive").generate(prompts, **settings)
    store = f"datastore:path={path}"
    generator = Generator(MODEL, proposer=store if parts == "alone" else f"{parts}+{store}")
    results = generator.generate(prompts, **settings)
    assert [result.token_ids for result in results] == [result.token_ids for result in plain]
    assert [generator.generate(prompt, **settings).token_ids for prompt in prompts] == [r.token_ids for r in plain]
    # How much merges draft goes by a clock.
    assert parts != "alone" or sum(result.stats.num_tokens for result in results) > 1.2 * sum(
        result.stats.steps for result in results
    )
    assert not any(result.notes for result in results)
    generator.close()


def test_it_passes_the_check_that_plug_in_authors_call(path: Path) -> None:
    check_proposer(DatastoreProposer(path=path), MODEL, [[0, 1], [3], [2, 2, 1, 2]], seed=1)


@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
def test_where_the_text_depends_on_drafts_earlier_requests_change_nothing(path: Path, verifier: str) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 40, "temperature": 1.0, "seed": 8}
    fresh = Generator(MODEL, proposer=DatastoreProposer(path=path), verifier=verifier).generate([1, 2], **settings)
    used = Generator(MODEL, proposer=DatastoreProposer(path=path), verifier=verifier)
    used.generate([3, 1], **settings)
    assert used.generate([1, 2], **settings).token_ids == fresh.token_ids


def test_rates_are_learnt_across_requests_and_forgotten_when_told(path: Path) -> None:
    engine = DatastoreProposer(path=path).bind(toy_host(6, reads_q=False))
    assert isinstance(engine, DatastoreEngine)
    drafter = engine.start(Request(TokenView([1, 2]), 1, 6, frozenset(), 0.0, Randomness(0).stream("test")))
    drafter.propose(ROOMY)
    assert engine.acceptance_rates
    engine.forget()
    assert not engine.acceptance_rates
    engine.close()


def spoilt(path: Path, fault: str) -> None:
    """Damage an index."""
    data = bytearray(path.read_bytes())
    if fault == "truncated":
        del data[-5000:]
    elif fault == "cut in its header":
        del data[40:]
    elif fault == "longer":
        data += b"more"
    elif fault == "foreign":
        data[:4] = b"PK\x03\x04"
    elif fault == "empty":
        data.clear()
    elif fault == "a bit of the header":
        place = data.index(b'"depth":32') + 9
        data[place] ^= 1  # still a number
    else:
        length = int.from_bytes(data[14:18], "little")
        header = bytes(data[22 : 22 + length])
        header = (
            header.replace(b'"version":1', b'"version":2')
            if fault == "later"
            else header.replace(b'"depth"', b'"dpeth"')
        )
        data[18:22] = zlib.crc32(header).to_bytes(4, "little")
        data[22 : 22 + length] = header
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("truncated", "is truncated: it has"),
        ("cut in its header", "is damaged: its header"),
        ("longer", "is damaged: it has"),
        ("foreign", "isn't a specdec index"),
        ("empty", "isn't a specdec index"),
        ("a bit of the header", "is damaged: its header"),
        ("later", "is of version 2, little-endian; this is version 1"),
        ("unknown fields", "is damaged: its header"),
    ],
)
def test_a_spoilt_file_is_refused_in_one_line_with_the_remedy(path: Path, fault: str, message: str) -> None:
    spoilt(path, fault)
    with pytest.raises(RequestError, match=message) as refused:
        Generator(MODEL, proposer=f"datastore:path={path}")
    assert "make one with `specdec index" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for missing in (tmp_path / "no", tmp_path):
        with pytest.raises(RequestError, match=r"can't be read \(.*\): make one with `specdec index"):
            Generator(MODEL, proposer=DatastoreProposer(path=missing))


def test_damage_in_the_arrays_costs_the_source_and_never_the_text(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xfe" * len(data[8192:])
    path.write_bytes(data)
    plain = Generator(MODEL, proposer="autoregressive").generate([1, 2], max_new_tokens=40)
    result = Generator(MODEL, proposer=MergedProposer([SuffixProposer(), DatastoreProposer(path=path)])).generate(
        [1, 2], max_new_tokens=40
    )
    assert result.token_ids == plain.token_ids
    assert any("is damaged: build it again" in note for note in result.notes)


def test_an_index_of_another_tokenizer_or_of_ids_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    tokenizer = trained()
    vocab_size = len(tokenizer)
    build_index(tmp_path / "own", [[1, 2, 3]], TokenizerFingerprint.of(tokenizer))
    build_index(tmp_path / "other", [[1, 2, 3]], TokenizerFingerprint(name="another/one", digest="abcdef0123"))
    build_index(tmp_path / "beyond", [[1, vocab_size]])
    model = ToyModel.random(vocab_size)
    Generator(model, tokenizer, proposer=DatastoreProposer(path=tmp_path / "own")).close()
    with pytest.raises(ModelError, match=r"made with the tokenizer 'another/one' \(abcdef01\), and the model's own"):
        Generator(model, tokenizer, proposer=DatastoreProposer(path=tmp_path / "other"))
    with pytest.raises(ModelError, match=f"has ids up to {vocab_size}, but the model's vocabulary has {vocab_size}"):
        Generator(model, tokenizer, proposer=DatastoreProposer(path=tmp_path / "beyond"))


def test_two_vocabularies_that_differ_in_one_id_have_other_fingerprints() -> None:
    class Renumbered:
        def __init__(self, vocabulary: dict[str, int]) -> None:
            self._vocabulary = vocabulary

        def get_vocab(self) -> dict[str, int]:
            return self._vocabulary

    one, other = Renumbered({"a": 0, "b": 1}), Renumbered({"a": 1, "b": 0})
    assert TokenizerFingerprint.of(one).digest != TokenizerFingerprint.of(other).digest
    assert TokenizerFingerprint.of(Renumbered({"b": 1, "a": 0})) == TokenizerFingerprint.of(one)


def test_options_are_checked_and_the_default_path_is_the_commands_default(tmp_path: Path) -> None:
    assert DatastoreProposer().path == Path("datastore.index")
    with pytest.raises(PluginError, match="depth"):
        Generator(MODEL, proposer="datastore:depth=33")


def test_the_docstrings_example_is_right_and_the_list_of_plug_ins_explains_the_options(run: Any) -> None:
    example = doctest.testmod(datastore)
    assert (example.attempted > 0, example.failed) == (True, 0)
    entries = [json.loads(line) for line in run("plugins", "--json")[1].splitlines()]
    (own,) = (entry for entry in entries if entry["from"] == "specdec-datastore")
    assert (own["kind"], own["name"]) == ("proposers", "datastore")
    assert "an index built by `specdec index`" in own["options"]["path"]["description"]
    assert own["description"]
    assert all(option["description"] for option in own["options"].values())
    assert DatastoreProposer.learns_across_requests
