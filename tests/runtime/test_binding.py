"""A generator's binding: every backend that is prepared is closed, once, and before the next backend is made."""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec import DraftModelProposer, Engine, Generator, ModelError, PluginError
from specdec.backends.hf import HFBackend
from specdec.models.weights.packing import packed_weights
from specdec.runtime.attempts import Attempts
from tests.support import families
from tests.support.scripted import Scripted

PROMPT = [5, 9, 2, 7, 1, 8, 3]


class Journal:
    """The backends that are prepared and not closed, and how many of one model there were at once."""

    def __init__(self) -> None:
        self.open: list[HFBackend] = []
        self.most = 0

    def begin(self, backend: HFBackend) -> None:
        self.open.append(backend)
        self.most = max(self.most, sum(each.model is backend.model for each in self.open))

    def end(self, backend: HFBackend) -> None:
        self.open = [each for each in self.open if each is not backend]


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    journal = Journal()
    made, close = HFBackend.__init__, HFBackend.close

    def noting_made(self: HFBackend, *given: Any) -> None:
        made(self, *given)
        journal.begin(self)

    def noting_close(self: HFBackend) -> None:
        assert any(each is self for each in journal.open), "closed twice, or never made"
        close(self)
        journal.end(self)

    monkeypatch.setattr(HFBackend, "__init__", noting_made)
    monkeypatch.setattr(HFBackend, "close", noting_close)
    return journal


def llama(**changes: Any) -> PreTrainedModel:
    return families.make("LlamaConfig", {**families.SMALL, **changes})


def decode(generator: Generator, **options: Any) -> Any:
    return generator.generate(PROMPT, max_new_tokens=3, **options)


@pytest.mark.filterwarnings("ignore:decoding with fast numerics")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["exact", "fast"])
def test_whatever_happens_to_the_model_its_backends_are_closed_before_others_are_made(
    journal: Journal, dtype: torch.dtype
) -> None:
    model = llama().to(dtype)
    generator = Generator(model, proposer="jacobi")
    assert len(journal.open) == 1
    model.to(torch.bfloat16)
    decode(generator)
    assert len(journal.open) == 1
    for _ in range(2):
        generator.close()
        assert not journal.open
    decode(generator)
    assert len(journal.open) == 1
    model.to(dtype)
    generator.close()
    assert not journal.open
    assert journal.most == 1


def test_backends_of_draft_models_are_closed(journal: Journal) -> None:
    generator = Generator(llama(), proposer=DraftModelProposer(layers=1))
    decode(generator, proposer=DraftModelProposer(model=llama(num_hidden_layers=1)))
    assert len(journal.open) == 3
    with closing(generator.open_target()):
        assert len(journal.open) == 4
    with pytest.raises(ModelError, match="the drafter's vocabulary is 120"):
        decode(generator, proposer=DraftModelProposer(model=llama(vocab_size=120)))
    assert len(journal.open) == 3
    generator.close()
    assert not journal.open


class Unwilling(Scripted):
    def bind(self, host: Any) -> Engine:
        host.open(llama())
        raise RuntimeError("no")


@pytest.mark.filterwarnings("ignore:decoding with fast numerics")
def test_a_generator_that_cannot_be_made_leaves_no_backend(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match="binding proposer Unwilling failed"):
        Generator(llama(), proposer=Unwilling())
    with pytest.raises(ModelError, match="numerics='exact' is unavailable"):
        Generator(llama().double(), numerics="exact")
    monkeypatch.setattr("specdec.runtime.probes.examination._self_test", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Generator(llama())
    assert not journal.open
    assert journal.most == 1


def interrupted(*given: object) -> Any:
    raise KeyboardInterrupt


class Noting(Engine):
    """An engine that refuses to serve once it is closed."""

    is_closed = False

    def close(self) -> None:
        type(self).is_closed = True

    def propose_many(self, *given: Any) -> Any:
        assert not self.is_closed
        return super().propose_many(*given)


def test_a_stream_keeps_what_it_decodes_with_to_its_end(journal: Journal) -> None:
    generator = Generator(llama(), proposer=Scripted(engine=Noting))
    stream = generator.stream(PROMPT, max_new_tokens=6)
    tokens = list(next(stream).token_ids)
    generator.close()
    assert len(tokens + [token for chunk in stream for token in chunk.token_ids]) == 6
    assert Noting.is_closed
    assert not journal.open


def test_asking_a_closed_generator_for_facts_does_not_open_it(journal: Journal) -> None:
    model = llama()
    generator = Generator(model, weights="packed")
    generator.close()
    assert (generator.vocab_size, generator.shapes.takes_trees) == (families.VOCAB, True)
    assert repr(generator)
    assert not packed_weights(model)
    assert not journal.open


def test_asking_for_facts_refuses_nobody_who_decodes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    generator = Generator(model, proposer="autoregressive", numerics="fast")
    asked, told, first = threading.Event(), threading.Event(), Attempts.first

    def slow(*given: Any) -> Any:
        asked.set()
        assert told.wait(60)
        return first(*given)

    monkeypatch.setattr(Attempts, "first", slow)
    model.to(torch.bfloat16)
    answers: list[Any] = []
    calls: list[Callable[[], Any]] = [lambda: generator.shapes.dtype, lambda: decode(generator).finish_reason]
    threads = [threading.Thread(target=lambda call=call: answers.append(call())) for call in calls]
    threads[0].start()
    assert asked.wait(60)
    threads[1].start()
    threads[1].join(0.2)
    told.set()
    for thread in threads:
        thread.join()
    assert set(answers) == {torch.bfloat16, "length"}
