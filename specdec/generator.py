"""The front door: text and ids in, results out."""

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Self

from specdec.binding import Bound, Choice, backend_class, bind
from specdec.costs import Costs
from specdec.decoding.result import Chunk, Result
from specdec.decoding.sequence import Sequence
from specdec.decoding.stats import Stats
from specdec.decoding.step import run
from specdec.errors import RequestError
from specdec.layout import Compiler
from specdec.loading import load_pretrained
from specdec.numerics import Mode, Numerics, checked_mode
from specdec.plugins.registry import load_plugins
from specdec.probes.findings import first_time
from specdec.requests import prompts
from specdec.requests.model_defaults import OwnSettings
from specdec.strategies.base import Proposer
from specdec.target import Driver
from specdec.verifiers.base import Verifier
from specdec.weights.holding import Holding
from specdec.weights.laying_out import Weights
from specdec.weights.modes import checked_weights


class Generator:
    """Decodes with a model, a few tokens per forward pass, without changing what it says.

    Args:
        model: a transformers causal language model, or its path or hub name (loaded with safetensors, without remote
            code); or a ``ToyModel``.
        tokenizer: its tokenizer; without one, prompts are token ids and results have no text.
        proposer, verifier, mask, backend: an object, or a string that names an installed plug-in with its options, such
            as ``"lookahead:N=5,W=15,G=15"``.
        numerics: "exact" for text that is the same to the bit for every strategy, batch and prompt, "fast" for the
            fastest attention, "auto" for exact wherever a probe of model and machine passes. A ``mask`` that is given
            decides instead.
        weights: "packed" for matrices laid out in memory for few rows, "stock" for the model's own, "auto" for packed
            ones wherever they are faster; or the name of an installed kernel, such as "int8", which is lossy. ``close``
            gives the model back as it was.
        max_batch_size: requests of a list decoded side by side; the others wait.

    Raises:
        ModelError: when the model or tokenizer can't be driven, with the reason.
        PluginError: for a plug-in that is unknown or misconfigured.

    Warns:
        UserWarning: when the verifier or the kernel is lossy, and, once for a model, when "auto" numerics are fast.
    """

    def __init__(  # noqa: PLR0913 - a stage each, and the model
        self,
        model: Any,
        tokenizer: Any | None = None,
        *,
        proposer: Proposer | str = "auto",
        verifier: Verifier | str = "match",
        numerics: Mode = "auto",
        weights: str = "auto",
        mask: Any = None,
        backend: str = "auto",
        max_batch_size: int = 8,
    ) -> None:
        if not isinstance(max_batch_size, int) or max_batch_size < 1:
            raise RequestError(f"max_batch_size={max_batch_size!r}: it must be an integer of at least 1")
        self._registry = load_plugins()
        compiler = None if mask is None else self._registry.make("masks", mask)
        self._choice = Choice(
            proposer=self._registry.make("proposers", proposer),
            verifier=self._registry.make("verifiers", verifier),
            numerics=checked_mode(numerics, compiler),
            compiler=compiler,
            backend=backend,
            weights=checked_weights(weights, self._registry),
        )
        kernels = {self._registry.name_of(each): each.cls() for each in self._registry.of_kind("kernels")}
        self._holding = Holding(weights, kernels)
        if not self.verifier.lossless:
            name = type(self.verifier).__name__
            warnings.warn(f"{name} is lossy: the text is not what the model alone would write", stacklevel=2)
        if weights in kernels and (rounded := kernels[weights].lossy):
            told = f"with weights={weights!r} the text is not what the model alone would write: {rounded}"
            warnings.warn(told, stacklevel=2)
        if backend != "auto":
            backend_class(self._registry, backend, model)  # before seconds go into loading
        if isinstance(model, str | os.PathLike):
            model, tokenizer = load_pretrained(os.fspath(model), tokenizer)
        self.model, self.tokenizer = model, tokenizer
        self._bound = self._bind()
        self._max_batch_size = max_batch_size
        self._lock = threading.Lock()  # held while it decodes; a stream may be closed by another thread than began it
        self._has_noted = False
        self._is_closed = False

    def _bind(self) -> Bound:
        try:
            bound = bind(self.model, self.tokenizer, self._choice, self._registry, self._holding)
        except BaseException:  # Ctrl-C too
            self._holding.give_back()
            raise
        why = bound.driven.why_not_exact
        if why and first_time(self.model, why):
            warnings.warn(f"decoding with fast numerics, as exact ones can't be had: {why}", stacklevel=3)
        return bound

    @property
    def proposer(self) -> Proposer:
        """The strategy."""
        return self._choice.proposer

    @property
    def verifier(self) -> Verifier:
        """The acceptance rule."""
        return self._choice.verifier

    def __repr__(self) -> str:
        driven = self._bound.driven
        return (
            f"Generator({type(self.model).__name__}, proposer={self.proposer!r}, verifier={self.verifier!r}, "
            f"mask={driven.compiler!r}, numerics={str(driven.numerics_now())!r})"
        )

    @property
    def compiler(self) -> Compiler:
        """The mask compiler that lays out its passes."""
        return self._present().driven.compiler

    @property
    def numerics(self) -> Numerics:
        """The numerics it decodes with, and whether they are bit-exact for this model on this machine."""
        return self._present().driven.numerics_now()

    @property
    def weights(self) -> Weights:
        """The layout of the model's weight matrices in memory, and the reason for it."""
        return self._present().weights

    def costs(self) -> Costs:
        """c(T): what its passes cost on this device, by their number of nodes; measured once for a model and numerics.

        Raises:
            RequestError: while it decodes.
        """
        with self._alone() as bound:
            return bound.driven.costs()

    @property
    def vocab_size(self) -> int:
        """Entries of the model's logits."""
        return self._present().driven.backend.shapes.vocab_size

    def driver(self) -> Driver:
        """The same model driven beside this generator, with a cache of its own: to measure or question it."""
        bound = self._present()
        return Driver(bound.load(bound.driven.compiler), bound.driven.compiler)

    @property
    def takes_trees(self) -> bool:
        """True if the model passed the self-test with trees; otherwise drafts are cut to chains."""
        return self._present().driven.backend.shapes.takes_trees

    def generate(self, prompt: Any, *, generation_config: Any | None = None, **settings: Any) -> Any:
        """Decode one prompt, or each of a list.

        Args:
            prompt: text, chat messages, token ids or a tensor; a list of those (or a 2-D tensor) is a batch.
            generation_config: a transformers GenerationConfig, honoured as it stands; ``settings`` go before it.
            settings: see ``Settings``. ``seed`` may be a list, one for each prompt.

        Returns:
            A Result, or a list of them in the order of the prompts. A list never raises for one member: its
            ``finish_reason`` is "error" and ``error`` says why.

        Raises:
            SpecdecError: for settings that are refused, and for a single prompt that can't be served.
        """
        results: dict[int, Result] = {}
        for chunk in self._decode(prompt, generation_config, settings, wants_text=False):
            if chunk.result is not None:
                results[chunk.index] = chunk.result
        if prompts.as_list(prompt)[1]:
            return [results[index] for index in sorted(results)]
        if results[0].error is not None:
            raise results[0].error
        return results[0]

    def stream(self, prompt: Any, *, generation_config: Any | None = None, **settings: Any) -> Iterator[Chunk]:
        """Decode as ``generate`` does, and yield what each step commits.

        Closing the iterator cancels what is under way. For a single prompt an error is raised, for a list it is in the
        request's last chunk.
        """
        is_list = prompts.as_list(prompt)[1]
        for chunk in self._decode(prompt, generation_config, settings, wants_text=self.tokenizer is not None):
            if chunk.result is not None and chunk.result.error is not None and not is_list:
                raise chunk.result.error
            yield chunk

    def refusals(self, prompts: list[Any], **settings: Any) -> list[Exception | None]:
        """Return the error with which ``generate`` would refuse each prompt, None if none; nothing is decoded.

        Raises:
            SpecdecError: for settings that are refused.
        """
        with self._alone() as bound:
            requests = bound.intake.sequences(prompts, None, settings, wants_text=False)
        return [request if isinstance(request, Exception) else None for request in requests]

    def close(self) -> None:
        """Release what the proposer holds, and the model, whose weights are then as they were.

        Weights that another generator decodes with stay packed for that one.
        """
        try:
            self._bound.parts.engine.close()
        finally:
            self._is_closed = True
            if self._lock.acquire(blocking=False):  # else a stream is open, at whose end it is given back
                try:
                    self._holding.give_back()
                finally:
                    self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RequestError(
            "a generator can't be copied or pickled, as it holds a cache and a lock: make another one of its model"
        )

    def _decode(self, prompt: Any, config: Any | None, given: dict[str, Any], wants_text: bool) -> Iterator[Chunk]:
        with self._alone() as bound:
            requests = bound.intake.sequences(prompt, config, given, wants_text)
            numerics = bound.driven.numerics_now()
            for index, request in enumerate(requests):
                if isinstance(request, Exception):
                    yield Chunk((), "", index, Result((), None, "error", Stats(), 0, numerics, request))
            sequences = [request for request in requests if isinstance(request, Sequence)]
            for advanced in run(sequences, bound.parts, self._max_batch_size):
                yield from map(self._chunk, advanced)

    @contextmanager
    def _alone(self) -> Iterator[Bound]:
        """Hold the generator, bound to its model as it is now.

        Raises:
            RequestError: while it decodes.
            ModelError: for a model that has changed so that it can't be driven any more.
        """
        if not self._lock.acquire(blocking=False):
            raise RequestError(
                "this generator is decoding already: exhaust or close its stream, or wait for the other thread"
            )
        try:
            self._holding.is_decoding = True  # from here on no other generator lays the weights out otherwise
            if not self._bound.is_current(self.model):  # it was cast, moved, resized, given an adapter, …
                former, self._bound = self._bound, self._bind()
                former.parts.engine.close()
            self._is_closed = False
            yield self._bound
        finally:
            self._holding.is_decoding = False
            if self._is_closed:
                self._holding.give_back()
            self._lock.release()

    def _present(self) -> Bound:
        """Return what is bound to the model as it is now, or, while the generator decodes, as it was then."""
        with suppress(RequestError), self._alone():
            pass
        return self._bound

    def _chunk(self, sequence: Sequence) -> Chunk:
        """Return the chunk that the sequence's last step committed, with the result where that was the end."""
        tokens = sequence.take()
        decoder = sequence.decoder
        text = decoder.take() if decoder is not None else ""
        if sequence.finish_reason is None:
            return Chunk(tokens, text, sequence.index)
        whole: str | None = None
        if decoder is not None:
            text += decoder.finish()
            whole = decoder.text
        elif self.tokenizer is not None:
            whole = self.tokenizer.decode(sequence.new_tokens, skip_special_tokens=True)
        numerics = self._bound.driven.numerics_now()
        result = Result(
            token_ids=tuple(sequence.new_tokens),
            text=whole,
            finish_reason=sequence.finish_reason,
            stats=sequence.stats,
            seed=sequence.randomness.seed,
            error=sequence.error,
            notes=self._take_notes(),
            lossless=self.verifier.lossless and not self._bound.weights.lossy,
            numerics=numerics,
            ties=sequence.ties(2 * numerics.noise),  # each of two may move by the noise
        )
        return Chunk(tokens, text, sequence.index, result)

    def _take_notes(self) -> tuple[str, ...]:
        """Packed weights, and the settings of the model's own that were left out, for the first result."""
        if self._has_noted:
            return ()
        self._has_noted = True
        weights = (f"weights {self._bound.weights}",) if self._bound.weights.is_worth_a_note else ()
        return weights + OwnSettings.of(self.model, self._bound.driven.backend.shapes.vocab_size).notes
