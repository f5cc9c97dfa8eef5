"""The front door: text and ids in, results out."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as ReadOnly
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Never, NoReturn, Self, overload

from specdec.costs import Costs
from specdec.decoding.contexts import Context
from specdec.decoding.result import Chunk, Result
from specdec.decoding.stats import Stats
from specdec.errors import RequestError, refuse_unknown
from specdec.layout import Compiler, Shapes
from specdec.models.loading import ModelSource, refuse_for_loaded
from specdec.models.unwrapping import unwrapped
from specdec.numerics import Mode, Numerics, checked_mode
from specdec.plugins.registry import load_plugins
from specdec.record import StepRecord
from specdec.requests.asked import Asked, asked
from specdec.requests.model_defaults import OwnSettings
from specdec.requests.streaming import streaming
from specdec.runtime.attached import AttachedModel
from specdec.runtime.binding import Bound, Choice
from specdec.runtime.engines import Opened, backend_for, read_model, why_failed, why_torch
from specdec.runtime.open_batch import OpenBatch
from specdec.settings import Settings
from specdec.strategies.base import Proposer
from specdec.target import Target
from specdec.verifiers.base import Verifier
from specdec.weights.laying_out import Weights
from specdec.weights.lease import Holding
from specdec.weights.modes import checked_weights

Strategic = Proposer | str | list[Proposer | str] | tuple[Proposer | str, ...] | None
OnStep = Callable[[StepRecord], None]
Each = ReadOnly[Mapping[str, Any]] | None
_MOST_NAMED = 64  # proposers made of text that are kept, each with a few options
_OPTIONS = (
    "tokenizer", "proposer", "verifier", "numerics", "weights", "mask", "backend", "device", "dtype", "max_batch_size",
    "max_cache_bytes",
)  # fmt: skip
_LOAD_IT = "load the model yourself, with AutoModelForCausalLM.from_pretrained, and give the object"
# Names of other libraries, and what to do instead.
_ELSEWHERE = {
    "torch_dtype": "dtype",
    "device_map": "device",
    "strategy": "proposer",
    "speculative_config": "proposer",
    "assistant_model": "give proposer=DraftModelProposer(model=…)",
    "draft_model": "give proposer=DraftModelProposer(model=…)",
    "engine": "backend",
    "max_num_seqs": "max_batch_size",
    "gguf_file": "give the file's path as the model",
    **dict.fromkeys(
        ("trust_remote_code", "quantization_config", "load_in_8bit", "load_in_4bit", "revision", "attn_implementation"),
        _LOAD_IT,
    ),
    **dict.fromkeys(
        (*Settings.model_fields, "do_sample", "stop_strings"),
        "it is a setting of generate: generator.generate(prompt, …)",
    ),
}


class Generator:
    """Decodes with a model, a few tokens per forward pass, without changing what it says.

    Args:
        model: a transformers causal language model, as it is or wrapped by PEFT, ``torch.compile`` or data parallelism;
            or its path or hub name (loaded from safetensors or a GGUF file, without remote code); or a ``ToyModel``.
        tokenizer: its tokenizer; without one, prompts are token ids and results have no text.
        proposer, verifier, mask: an object, or a string that names an installed plug-in with its options, such as
            ``"lookahead:N=5,W=15,G=15"``.
        backend: such a string. "auto" decodes a model object with torch. A model given by name is decoded with the
            installed backend that is faster where it can be, such as OpenVINO on a CPU, and with torch otherwise; the
            first result's notes say which, and "hf" is torch in any case.
        device, dtype: of a model given by name: a torch device, by default a GPU if torch has one; and bfloat16,
            float16, float32 or float64, by default the checkpoint's own.
        numerics: "exact" for text that is the same to the bit for every strategy, batch and prompt, "fast" for the
            fastest attention, "auto" for exact wherever a probe of model and machine passes. A ``mask`` that is given
            decides instead.
        weights: "packed" for matrices laid out in memory for few rows, "stock" for the model's own, "auto" for packed
            ones wherever they are faster; or the name of an installed kernel, such as "int8", which is lossy. ``close``
            gives the model back as it was.
        max_batch_size: requests of a list decoded side by side; the others wait.
        max_cache_bytes: of keys and values that requests side by side may need; by default most of what is free when
            they begin. One alone may need more. The caches of draft models aren't counted.

    Raises:
        ModelError: when the model or tokenizer can't be driven, with the reason.
        PluginError: for a plug-in that is unknown or misconfigured.
        RequestError: for an argument that is unknown or can't be honoured.

    Warns:
        UserWarning: when the verifier, the kernel or the backend is lossy; once for a model, when "auto" numerics are
            fast; and when torch decodes because a faster backend tried and failed.
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
        device: Any = None,
        dtype: Any = None,
        max_batch_size: int = 8,
        max_cache_bytes: int | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown("Generator", unknown, _OPTIONS, _ELSEWHERE)
        cache_bytes = 1 if max_cache_bytes is None else max_cache_bytes
        for name, limit in (("max_batch_size", max_batch_size), ("max_cache_bytes", cache_bytes)):
            if not isinstance(limit, int) or limit < 1:
                raise RequestError(f"{name}={limit!r}: it must be an integer of at least 1")
        self._registry = load_plugins()
        self._named: Callable[[str], Proposer] = lru_cache(_MOST_NAMED)(partial(self._registry.make, "proposers"))
        compiler = None if mask is None else self._registry.make("masks", mask)
        self._choice = Choice(
            proposer=self._made(proposer),
            verifier=self._registry.make("verifiers", verifier),
            numerics=checked_mode(numerics, compiler),
            compiler=compiler,
            backend=backend,
            weights=checked_weights(weights, self._registry),
        )
        kernels = self._registry.kernels()
        if not self.verifier.lossless:
            name = type(self.verifier).__name__
            warnings.warn(f"{name} is lossy: the text is not what the model alone would write", stacklevel=2)
        if weights in kernels and (rounded := kernels[weights].lossy):
            told = f"with weights={weights!r} the text is not what the model alone would write: {rounded}"
            warnings.warn(told, stacklevel=2)
        # A backend that is unknown is said before seconds go into loading; "auto" is chosen by what was loaded.
        if backend != "auto":
            backend_for(self._registry, backend, model)
        if isinstance(model, str | os.PathLike):
            opened, attached = self._open(ModelSource.of(os.fspath(model), device, dtype), tokenizer)
        else:
            refuse_for_loaded(model, device, dtype)
            opened, attached = Opened(unwrapped(model), tokenizer), None
        self.model: Any = opened.model
        self.tokenizer: Any = opened.tokenizer
        self._note = opened.note
        self._attached = attached or AttachedModel(
            self.model, self.tokenizer, self._choice, self._registry, Holding(weights, kernels)
        )
        if opened.failed:
            warnings.warn(opened.note, stacklevel=2)
            self._note = ""
        if made_other := self._attached.bound.target.backend.lossy:
            told = f"with backend={backend!r} the text is not what the model alone would write: {made_other}"
            warnings.warn(told, stacklevel=2)
        self._max_batch_size, self._max_cache_bytes = max_batch_size, max_cache_bytes
        self._has_noted = False

    def _open(self, source: ModelSource, tokenizer: Any | None) -> tuple[Opened, AttachedModel | None]:
        """Read a model by its name, and attach it where another backend than torch drives it by preference."""
        choice = self._choice
        why = why_torch(choice.weights, choice.compiler, [choice.proposer])
        # Numerics that torch has, and the backend hasn't, are a reason against the backend.
        wanted = replace(choice, numerics="exact" if choice.numerics == "auto" else choice.numerics)
        failed = dict[str, str]()
        while (opened := read_model(self._registry, choice.backend, source, tokenizer, why, failed)).engine:
            holding = Holding(choice.weights, self._registry.kernels())
            try:
                return opened, AttachedModel(opened.model, opened.tokenizer, wanted, self._registry, holding)
            except RequestError:
                raise
            except Exception as error:  # whatever goes wrong there, torch is tried
                failed[opened.engine] = why_failed(error)
        return opened, None

    @property
    def proposer(self) -> Proposer:
        """The strategy."""
        return self._choice.proposer

    @property
    def verifier(self) -> Verifier:
        """The acceptance rule."""
        return self._choice.verifier

    def __repr__(self) -> str:
        driven = self._attached.bound.driven
        return (
            f"Generator({type(self.model).__name__}, proposer={self.proposer!r}, verifier={self.verifier!r}, "
            f"mask={driven.target.compiler!r}, numerics={str(driven.numerics_now())!r})"
        )

    @property
    def compiler(self) -> Compiler:
        """The mask compiler that lays out its passes."""
        return self._attached.present().target.compiler

    @property
    def numerics(self) -> Numerics:
        """The numerics it decodes with, and whether they are bit-exact for this model on this machine."""
        return self._attached.present().driven.numerics_now()

    @property
    def weights(self) -> Weights:
        """The layout of the model's weight matrices in memory, and the reason for it."""
        return self._attached.present().weights

    def costs(self) -> Costs:
        """c(T): what its passes cost on this device, by their number of nodes; measured once for a model and numerics.

        Raises:
            RequestError: while it decodes.
        """
        with self._attached.alone() as bound:
            return bound.driven.costs()

    def prepare(self, on_progress: Callable[[int, int], object] = lambda *_: None) -> None:
        """Ask the model once what may follow each token of its vocabulary, so that drafts are good from the start.

        A generator whose strategy wants that spends some seconds on it when it is made, and goes on at the next load;
        this does the rest at once. What is found is kept in specdec's cache folder, and every later load finds it.

        Args:
            on_progress: told how many tokens are done, and of how many, before each pass.

        Raises:
            RequestError: while it decodes, for a model that takes chains only, or if the folder can't be written to.
        """
        with self._attached.alone() as bound:
            if not bound.target.shapes.takes_trees:
                remedy = "" if bound.target.backend.runs_layers else "; backend='hf' may support them"
                raise RequestError(f"prepare() needs a model that supports tree drafts, and this one doesn't{remedy}")
            bound.driven.prepare(bound.first, on_progress)

    @property
    def shapes(self) -> Shapes:
        """The facts of the model: vocabulary, positions, dtype, device, and whether it takes trees."""
        return self._attached.present().target.shapes

    @property
    def vocab_size(self) -> int:
        """Entries of the model's logits."""
        return self.shapes.vocab_size

    def forget(self) -> None:
        """Forget what strategies remember of the texts of earlier requests, as a comparison does before each repeat.

        Raises:
            RequestError: while it decodes.
        """
        with self._attached.alone() as bound:
            bound.strategies.forget()

    def context(self) -> Context:
        """Return a context, which keeps keys and values from each request that is given it to the next.

        Close it, or use it in a ``with`` statement: it holds memory. Where that is short, the context that was used
        least recently is emptied, and its next request computes everything anew.
        """
        return Context(self)

    def drop(self, context: Context) -> None:
        """Empty a context; one that was closed while it decodes is emptied by its request's end."""
        with suppress(RequestError), self._attached.alone() as bound:
            bound.contexts.drop(context)

    def open_target(self) -> Target:
        """The same model driven beside this generator, with a cache of its own: to measure or question it.

        The caller closes it, before the generator.
        """
        bound = self._attached.present()
        return Target(bound.load(bound.target.compiler), bound.target.compiler)

    @property
    def takes_trees(self) -> bool:
        """True if the model passed the self-test with trees; otherwise drafts are cut to chains."""
        return self.shapes.takes_trees

    @overload
    def generate(
        self,
        prompt: str | list[int],
        *,
        proposer: Strategic = None,
        generation_config: Any | None = None,
        on_step: OnStep | None = None,
        each: Each = None,
        context: Context | ReadOnly[Context | None] | None = None,
        **settings: Any,
    ) -> Result: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        *,
        proposer: Strategic = None,
        generation_config: Any | None = None,
        on_step: OnStep | None = None,
        each: Each = None,
        context: Context | ReadOnly[Context | None] | None = None,
        **settings: Any,
    ) -> list[Result]: ...
    @overload
    def generate(
        self,
        prompt: Any = None,
        *,
        proposer: Strategic = None,
        generation_config: Any | None = None,
        on_step: OnStep | None = None,
        each: Each = None,
        context: Context | ReadOnly[Context | None] | None = None,
        **settings: Any,
    ) -> Any: ...
    def generate(
        self,
        prompt: Any = None,
        *,
        proposer: Strategic = None,
        generation_config: Any | None = None,
        on_step: OnStep | None = None,
        each: Each = None,
        context: Context | ReadOnly[Context | None] | None = None,
        **settings: Any,
    ) -> Any:
        """Decode one prompt, or each of a list.

        Args:
            prompt: text, chat messages, token ids or a tensor; a list of those (or a 2-D tensor) is a batch. So is a
                tokenizer's output, which may also be given by its names, ``generate(**encoded)``.
            proposer: the strategy for this call, or a list of them, one for each prompt; by default the generator's.
                The same text or object shares what it holds and learns, within a call and from call to call.
            generation_config: a transformers GenerationConfig, honoured as it stands; ``settings`` go before it.
            on_step: called with the record of each pass as it ends: trees, accepted paths, tokens, seconds.
            each: of a list, settings of single prompts, one mapping for each, which go before ``settings``.
            context: a ``context`` of this generator, or a list of them, one for each prompt: what it holds of the
                prompt isn't computed again, and it holds this text afterwards.
            settings: see ``Settings``. ``seed`` may be a list, one for each prompt. What ``model.generate`` takes is
                taken as well: ``do_sample``, ``stop_strings``, ``num_return_sequences``, ``streamer``, and options of
                the chat template (``tools``, ``enable_thinking``, others in ``chat_template_kwargs``).

        Returns:
            A Result, or a list of them in the order of the prompts. A list never raises for one member: its
            ``finish_reason`` is "error" and ``error`` says why.

        Raises:
            SpecdecError: for settings that are refused, and for a single prompt that can't be served.
        """
        results: dict[int, Result] = {}
        question = asked(prompt, settings, generation_config, each, context)
        for chunk in self._decode(question, proposer, on_step):
            if chunk.result is not None:
                results[chunk.index] = chunk.result
        if question.is_list:
            return [results[index] for index in sorted(results)]
        if results[0].error is not None:
            raise results[0].error
        return results[0]

    def stream(
        self,
        prompt: Any = None,
        *,
        proposer: Strategic = None,
        generation_config: Any | None = None,
        on_step: OnStep | None = None,
        each: Each = None,
        context: Context | ReadOnly[Context | None] | None = None,
        **settings: Any,
    ) -> Iterator[Chunk]:
        """Decode as ``generate`` does, and yield what each step commits.

        Closing the iterator cancels what is under way. For a single prompt an error is raised, for a list it is in the
        request's last chunk.
        """
        question = asked(prompt, settings, generation_config, each, context)
        for chunk in self._decode(question, proposer, on_step, wants_text=self.tokenizer is not None):
            if chunk.result is not None and chunk.result.error is not None and not question.is_list:
                raise chunk.result.error
            yield chunk

    @contextmanager
    def open_batch(self, *, max_batch_size: int | None = None, max_prefix_bytes: int = 0) -> Iterator[OpenBatch]:
        """Decode requests that come one by one, as a server does: see ``OpenBatch``.

        The generator serves nothing else until the batch is closed.

        Args:
            max_batch_size: requests decoded side by side; by default the generator's.
            max_prefix_bytes: of keys and values that are kept for requests which begin with the same tokens.

        Raises:
            RequestError: while it decodes.
        """
        with (
            self._attached.alone() as bound,
            OpenBatch(
                bound,
                self.verifier,
                self._take_notes,
                max_batch_size=max_batch_size or self._max_batch_size,
                max_cache_bytes=self._max_cache_bytes,
                max_prefix_bytes=max_prefix_bytes,
            ) as batch,
        ):
            yield batch

    def refusals(self, prompts: list[Any], **settings: Any) -> list[Exception | None]:
        """Return the error with which ``generate`` would refuse each prompt, None if none; nothing is decoded.

        Raises:
            SpecdecError: for settings that are refused.
        """
        question = asked(prompts, settings)
        with self._attached.alone() as bound:
            requests = bound.intake.sequences(question, [bound.strategies.own])
        return [request if isinstance(request, Exception) else None for request in requests]

    def close(self) -> None:
        """Release what the proposer holds, and the model, whose weights are then as they were.

        Weights that another generator decodes with stay packed for that one. A stream that is open goes on to its end
        first. A closed generator may be used again, and is bound anew then.
        """
        self._attached.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RequestError(
            "a generator can't be copied or pickled, as it holds a cache and a lock: make another one of its model"
        )

    def _decode(
        self, question: Asked, proposer: Strategic, on_step: OnStep | None, wants_text: bool = False
    ) -> Iterator[Chunk]:
        if any(context is not None and context.owner is not self for context in question.contexts):
            raise RequestError("a context of another generator was given: each has its own cache")
        with self.open_batch() as batch:
            requests = batch.add(question, self._proposers(proposer), wants_text=wants_text)
            for index, request in enumerate(requests):
                if isinstance(request, Exception):
                    yield Chunk((), "", index, Result((), None, "error", Stats(), 0, self.numerics, request))
            with streaming(question.streamer, requests) as tell:
                while (record := batch.advance()) is not None:
                    if on_step is not None:
                        on_step(record)
                    for outcome in record.outcomes:
                        tell(outcome.tokens)
                        if not outcome.is_chunk or outcome.finish_reason is not None:
                            yield batch.chunk(outcome)

    def _proposers(self, given: Strategic) -> list[Proposer]:
        """Return the proposers of a call: none for the generator's own, one for all prompts, or one for each."""
        if given is None:
            return []
        return [self._made(one) for one in (given if isinstance(given, list | tuple) else [given])]

    def _made(self, proposer: Proposer | str) -> Proposer:
        """Return a proposer; the same one for the same text."""
        if isinstance(proposer, str):
            return self._named(proposer)
        made: Proposer = self._registry.make("proposers", proposer)
        return made

    def _take_notes(self, bound: Bound) -> tuple[str, ...]:
        """The backend, packed weights, and the model's own settings that were left out, for the first result."""
        if self._has_noted:
            return ()
        self._has_noted = True
        engine = (self._note,) if self._note else ()
        weights = (f"weights {bound.weights}",) if bound.weights.is_worth_a_note else ()
        return engine + weights + OwnSettings.of(self.model, bound.target.shapes.vocab_size).notes
