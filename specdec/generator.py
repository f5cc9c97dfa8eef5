"""The front door: text and ids in, results out."""

import os
import warnings
from collections.abc import Iterator
from typing import Any, Self

from specdec import prompts
from specdec.backends.base import Backend
from specdec.costs import Costs
from specdec.driver import Driver
from specdec.errors import ModelError, PluginError, RequestError, SpecdecError, failure
from specdec.intake import Intake
from specdec.layout import Compiler
from specdec.loading import OwnSettings, check_tokenizer, load_pretrained
from specdec.loop import Parts, run
from specdec.masks.dense import DenseCompiler
from specdec.numerics import Mode, Numerics, drive
from specdec.plugins import Registry, load_plugins
from specdec.result import Chunk, Result
from specdec.sequence import Sequence
from specdec.stats import Stats
from specdec.strategies.base import Engine, Host, Nodes, Proposer, What
from specdec.verifiers.base import Verifier

# A limit against runaway proposers; the largest published lookahead setting has 480 nodes.
MAX_NODES = 512


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
        max_batch_size: requests of a list decoded side by side; the others wait.

    Raises:
        ModelError: when the model or tokenizer can't be driven, with the reason.
        PluginError: for a plug-in that is unknown or misconfigured.

    Warns:
        UserWarning: when the verifier is lossy.
    """

    def __init__(  # noqa: PLR0913 - a stage each, and the model
        self,
        model: Any,
        tokenizer: Any | None = None,
        *,
        proposer: Proposer | str = "auto",
        verifier: Verifier | str = "match",
        numerics: Mode = "auto",
        mask: Any = None,
        backend: str = "auto",
        max_batch_size: int = 8,
    ) -> None:
        if not isinstance(max_batch_size, int) or max_batch_size < 1:
            raise RequestError(f"max_batch_size={max_batch_size!r}: it must be an integer of at least 1")
        registry = load_plugins()
        self.proposer: Proposer = registry.make("proposers", proposer)
        self.verifier: Verifier = registry.make("verifiers", verifier)
        if not self.verifier.lossless:
            name = type(self.verifier).__name__
            warnings.warn(f"{name} is lossy: the text is not what the model alone would write", stacklevel=2)
        compiler = None if mask is None else registry.make("masks", mask)
        if isinstance(model, str | os.PathLike):
            model, tokenizer = load_pretrained(os.fspath(model), tokenizer)
        self.model, self.tokenizer = model, tokenizer

        def load(compiler: Compiler) -> Backend:
            loaded: Backend = _backend_class(registry, backend, model).load(model, compiler)
            return loaded

        self._load = load
        self._driven = drive(load, model, numerics, compiler)
        driver = self._driven.backend
        check_tokenizer(tokenizer, driver.shapes.vocab_size)
        engine, wants = self._bind(registry)
        self._parts = Parts(
            engine=engine,
            proposer_name=type(self.proposer).__name__,
            wants=wants,
            compiler=self._driven.compiler,
            backend=driver,
            verifier=self.verifier,
            fallback=registry.make("verifiers", "match"),
            max_nodes=MAX_NODES,
            flags_ties=self.numerics.noise > 0.0,
        )
        self._max_batch_size = max_batch_size
        self._intake = Intake(tokenizer, driver.shapes, self.verifier, OwnSettings.of(model, driver.shapes.vocab_size))
        self._is_busy = False

    def _bind(self, registry: Registry) -> tuple[Engine, frozenset[tuple[Nodes, What]]]:
        """The proposer's engine for this model, and what it wants to hear."""

        def open_driver(other: Any) -> Driver:
            compiler = DenseCompiler()  # a draft's last bits are nobody's concern
            return Driver(_backend_class(registry, "auto", other).load(other, compiler), compiler)

        host = Host(
            model=self.model,
            tokenizer=self.tokenizer,
            vocab_size=self._driven.backend.shapes.vocab_size,
            reads_q=self.verifier.reads_q,
            is_keyed=self.verifier.is_keyed,
            takes_trees=self._driven.backend.shapes.takes_trees,
            load=load_pretrained,
            open=open_driver,
            costs=self._driven.costs,
        )
        name = type(self.proposer).__name__
        try:
            engine, wants = self.proposer.bind(host), frozenset(self.proposer.wants())
        except SpecdecError:
            raise
        except Exception as error:  # a third party's code
            raise failure(f"binding proposer {name}", error) from error
        if not isinstance(engine, Engine):
            raise PluginError(f"proposer {name}: bind returned {engine!r}, which is not an Engine")
        for wanted in wants:
            if not (isinstance(wanted, tuple) and [type(part) for part in wanted] == [Nodes, What]):
                pair = "a pair such as (Nodes.PATH, What.ARGMAX)"
                raise PluginError(f"proposer {name}: wants returned {wanted!r}, which is not {pair}")
        return engine, wants

    def __repr__(self) -> str:
        return (
            f"Generator({type(self.model).__name__}, proposer={self.proposer!r}, verifier={self.verifier!r}, "
            f"mask={self.compiler!r}, numerics={str(self.numerics)!r})"
        )

    @property
    def compiler(self) -> Compiler:
        """What lays out its passes."""
        return self._parts.compiler

    @property
    def numerics(self) -> Numerics:
        """Which numerics it decodes with, and whether they are bit-exact for this model on this machine."""
        return self._driven.numerics_now()

    def costs(self) -> Costs:
        """c(T): what its passes cost on this device, by their number of nodes; measured once for a model and numerics.

        Raises:
            RequestError: while it decodes.
        """
        self._check_idle()
        return self._driven.costs()

    @property
    def vocab_size(self) -> int:
        """Entries of the model's logits."""
        return self._parts.backend.shapes.vocab_size

    def driver(self) -> Driver:
        """The same model driven beside this generator, with a cache of its own: to measure or question it."""
        return Driver(self._load(self._parts.compiler), self._parts.compiler)

    @property
    def takes_trees(self) -> bool:
        """Whether the model passed the self-test with trees; otherwise drafts are cut to chains."""
        return self._parts.backend.shapes.takes_trees

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
        """Why ``generate`` would refuse each of these prompts, None where it wouldn't; nothing is decoded.

        Raises:
            SpecdecError: for settings that are refused.
        """
        requests = self._intake.sequences(prompts, None, settings, wants_text=False)
        return [request if isinstance(request, Exception) else None for request in requests]

    def close(self) -> None:
        """Release what the proposer holds."""
        self._parts.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _decode(self, prompt: Any, config: Any | None, given: dict[str, Any], wants_text: bool) -> Iterator[Chunk]:
        self._check_idle()
        requests = self._intake.sequences(prompt, config, given, wants_text)
        self._is_busy = True
        try:
            for index, request in enumerate(requests):
                if isinstance(request, Exception):
                    yield Chunk((), "", index, Result((), None, "error", Stats(), 0, self.numerics, request))
            sequences = [request for request in requests if isinstance(request, Sequence)]
            for advanced in run(sequences, self._parts, self._max_batch_size):
                yield from map(self._chunk, advanced)
        finally:
            self._is_busy = False

    def _check_idle(self) -> None:
        if self._is_busy:
            raise RequestError(
                "this generator is decoding already: exhaust or close its stream, or wait for the other thread"
            )

    def _chunk(self, sequence: Sequence) -> Chunk:
        """What the sequence's last step committed; its result too, where that was the end."""
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
        result = Result(
            token_ids=tuple(sequence.new_tokens),
            text=whole,
            finish_reason=sequence.finish_reason,
            stats=sequence.stats,
            seed=sequence.randomness.seed,
            error=sequence.error,
            notes=self._intake.own.take_notes(),
            lossless=self.verifier.lossless,
            numerics=self.numerics,
            ties=sequence.ties(2 * self.numerics.noise),  # each of two may move by the noise
        )
        return Chunk(tokens, text, sequence.index, result)


def _backend_class(registry: Registry, name: str, model: object) -> Any:
    if not isinstance(name, str):
        raise PluginError(f"backend={name!r}: give a backend's name, or 'auto'")
    if name != "auto":
        return registry.find("backends", name)
    for plugin in registry.of_kind("backends"):
        if plugin.cls.accepts(model):  # type: ignore[attr-defined]  # checked to be a Backend when it registered
            return plugin.cls
    raise ModelError(
        f"no backend drives a {type(model).__name__}: give a transformers causal language model "
        f"(AutoModelForCausalLM), its path or hub name, or a ToyModel{registry.faults()}"
    )
