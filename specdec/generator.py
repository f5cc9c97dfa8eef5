"""The public entry point: ``Generator`` decodes text, messages or token ids."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Never, NoReturn, Self, Unpack, overload

from specdec.costs import Costs
from specdec.decoding.context import Context
from specdec.decoding.result import Chunk, Result
from specdec.decoding.stats import Stats
from specdec.errors import RequestError
from specdec.layout import Compiler, Shapes
from specdec.machine.huge_pages import HugePages
from specdec.models.encoder_decoders import whole_of
from specdec.models.weights.pack_model import Weights
from specdec.numerics import Mode, Numerics
from specdec.plugins.registry import load_plugins
from specdec.requests.generation_request import GenerationRequest
from specdec.requests.options import GenerateOptions, OnStep, ProposerChoice, pop_generator_options
from specdec.requests.streaming import streaming
from specdec.runtime.open_batch import OpenBatch
from specdec.runtime.opening import check_arguments, choice_of, open_model
from specdec.strategies.base import Proposer
from specdec.target import Target
from specdec.verifiers.base import Verifier


class Generator:
    """Decodes with a model, several tokens per forward pass, without changing the text.

    Args:
        model: a transformers text generator, as it is or wrapped by PEFT, ``torch.compile`` or data parallelism;
            or its path or hub name (loaded from safetensors or a GGUF file, without remote code); or a ``ToyModel``.
        tokenizer: the model's, or its processor if prompts have images or audio; without it, prompts are token ids.
        proposer, verifier, mask: an object, or a string that names an installed plug-in with its options, such as
            ``"lookahead:N=5,W=15,G=15"``.
        backend: a string of that form. "auto" decodes a model object with torch, and a model given by name with an
            installed backend that is faster, such as OpenVINO on a CPU, if it can drive the model; the first result's
            notes name the backend. "hf", "static" (CUDA graphs) and "fused" (with fewer kernels; both tried first on a
            GPU) always decode with torch.
        device, dtype: for a model given by name: a torch device (default: a GPU if torch has one); and bfloat16,
            float16, float32 or float64 (default: the checkpoint's).
        numerics: "exact" for text that is the same to the bit for every strategy, batch and prompt, "fast" for the
            fastest attention, "auto" for exact if a probe of model and machine passes. A ``mask`` decides instead.
        weights: "packed" for matrices in a layout for products of few rows, "stock" for the model's own, "auto" for
            packed matrices if they are faster; or the name of an installed kernel, such as "int8", which is lossy.
            ``close`` restores the model.
        max_batch_size: requests of a list that are decoded together; the others wait.
        max_cache_bytes: keys and values of the requests decoded together, with those of encoders (default: most of the
            free memory). A lone request may need more. The caches of draft models aren't counted.
        background_work: shorten the passes of long runs on CPUs by huge pages, in a thread.

    Raises:
        ModelError: if the model or tokenizer isn't supported, with the reason.
        PluginError: for an unknown or misconfigured plug-in.
        RequestError: for an unknown or unsupported argument.

    Warns:
        UserWarning: if the verifier, the kernel or the backend is lossy; once for a model, if "auto" numerics are fast;
            and if torch decodes because a faster backend failed.
    """

    def __init__(  # noqa: PLR0913 - one per stage, and the model
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
        background_work: bool = True,
        **unknown: Never,
    ) -> None:
        check_arguments(unknown, max_batch_size, max_cache_bytes, background_work)
        registry = load_plugins()
        choice = choice_of(registry, proposer, verifier, numerics, weights, mask, backend)
        self._binding = open_model(registry, choice, model, tokenizer, device, dtype)
        self.model: Any = whole_of(self._binding.loaded.model) or self._binding.loaded.model
        self.tokenizer: Any = self._binding.loaded.tokenizer
        self.processor: Any = None if self._binding.builder.why_text_only else self._binding.loaded.processor
        for loss in self._binding.losses():
            warnings.warn(loss, stacklevel=2)
        self._max_batch_size, self._max_cache_bytes = max_batch_size, max_cache_bytes
        self._huge_pages = HugePages() if background_work else None

    def __repr__(self) -> str:
        stages = f"proposer={self.proposer!r}, verifier={self.verifier!r}, mask={self.mask!r}"
        return f"Generator({type(self.model).__name__}, {stages}, numerics={str(self._binding.numerics)!r})"

    @property
    def proposer(self) -> Proposer:
        """The strategy."""
        return self._binding.choice.proposer

    @property
    def verifier(self) -> Verifier:
        """The acceptance rule."""
        return self._binding.choice.verifier

    @property
    def mask(self) -> Compiler:
        """The mask compiler: the given one, or that of the numerics."""
        return self._binding.target.compiler

    @property
    def numerics(self) -> Numerics:
        """The numerics, and whether they are bit-exact for this model on this machine."""
        self._binding.refresh()
        return self._binding.numerics

    @property
    def weights(self) -> Weights:
        """The layout of the model's weight matrices in memory, with the reason."""
        self._binding.refresh()
        return self._binding.weights

    @property
    def shapes(self) -> Shapes:
        """The facts of the model: vocabulary, positions, dtype, device, and whether it supports draft trees."""
        self._binding.refresh()
        return self._binding.target.shapes

    @property
    def vocab_size(self) -> int:
        """Entries of the model's logits."""
        return self.shapes.vocab_size

    def costs(self) -> Costs:
        """c(T): what a pass of T nodes costs here, measured once for a model; raises RequestError while it decodes."""
        with self._binding.alone() as binding:
            return binding.costs()

    def prepare(self, on_progress: Callable[[int, int], object] = lambda *_: None) -> None:
        """Finish the work that makes the strategies' drafts good from the first token on.

        Token recycling computes what may follow each token of the vocabulary; a file in specdec's cache folder retains
        it for later generators of this model.

        Args:
            on_progress: called with the number of parts done and of all parts, before each part.

        Raises:
            RequestError: while the generator decodes; for token recycling with a model that doesn't support trees, or
                if the folder can't be written to.
        """
        with self._binding.alone() as binding:
            binding.strategies.prepare(on_progress, math.inf)

    def forget(self) -> None:
        """Drop what strategies have learnt from earlier requests, as a comparison does before each repeat.

        Raises RequestError while the generator decodes.
        """
        with self._binding.alone() as binding:
            binding.strategies.forget()

    def context(self) -> Context:
        """Return a context, which caches keys and values from each of its requests to the next.

        Close it, or use it in a ``with`` statement. If memory is short, the context used least recently is emptied;
        its next request computes everything again.
        """
        return Context(self)

    def drop(self, context: Context) -> None:
        """Empty a context; while the generator decodes, the context's request does so when it ends."""
        with suppress(RequestError), self._binding.alone() as binding:
            binding.prefix_cache.drop(context)

    def open_target(self) -> Target:
        """Return another target of this model, with a cache of its own, to measure or question the model.

        The caller closes it, before the generator.
        """
        self._binding.refresh()
        return self._binding.open_target()

    @overload
    def generate(self, prompt: str | list[int], **options: Unpack[GenerateOptions]) -> Result: ...
    @overload
    def generate(self, prompt: list[str] | list[list[int]], **options: Unpack[GenerateOptions]) -> list[Result]: ...
    @overload
    def generate(self, prompt: Any = None, **options: Unpack[GenerateOptions]) -> Any: ...
    def generate(self, prompt: Any = None, **options: Unpack[GenerateOptions]) -> Any:
        """Decode one prompt, or each of a list.

        Args:
            prompt: text, chat messages, token ids or a tensor; a list of those (or a 2-D tensor) is a batch. The output
                of a tokenizer or processor is a prompt too, and may be passed by its names: ``generate(**encoded)``.
            proposer: the strategy for this call, or a list with one for each prompt (default: the generator's). The
                same text or object keeps what it learns, within a call and from call to call.
            generation_config: a transformers GenerationConfig; settings passed by name take precedence.
            on_step: called with the record of each pass: trees, accepted paths, tokens, seconds.
            each: for a list, one mapping of settings for each prompt, which take precedence.
            context: a ``context`` of this generator, or one for each prompt, whose cached tokens aren't computed again.
            reference: text or ids that the answer is expected to resemble, to draft from; or one for each prompt.
            options: settings, see ``Settings``. ``seed`` may be a list, one for each prompt. Names of
                ``model.generate`` are accepted: ``do_sample``, ``stop_strings``, ``num_return_sequences``,
                ``streamer``; and the chat template's options: ``tools`` and others in ``chat_template_kwargs``.

        Returns:
            A Result, or a list in the order of the prompts. A list never raises for one member: its ``finish_reason``
            is "error" and ``error`` has the reason.

        Raises:
            SpecdecError: for settings that are refused, and for a single prompt that can't be served.
        """
        proposer, on_step = pop_generator_options(options)
        request = GenerationRequest.of(prompt, **options)
        chunks = self._decode(request, proposer, on_step)
        results = {chunk.index: chunk.result for chunk in chunks if chunk.result is not None}
        if request.is_list:
            return [results[index] for index in sorted(results)]
        if results[0].error is not None:
            raise results[0].error
        return results[0]

    def stream(self, prompt: Any = None, **options: Unpack[GenerateOptions]) -> Iterator[Chunk]:
        """Decode as ``generate`` does, and yield what each step commits.

        Closing the iterator cancels the requests. A single prompt's error is raised; in a list, the request's last
        chunk has it.
        """
        proposer, on_step = pop_generator_options(options)
        request = GenerationRequest.of(prompt, **options)
        for chunk in self._decode(request, proposer, on_step, wants_text=self.tokenizer is not None):
            if chunk.result is not None and chunk.result.error is not None and not request.is_list:
                raise chunk.result.error
            yield chunk

    @contextmanager
    def open_batch(
        self, *, max_batch_size: int | None = None, max_prefix_bytes: int = 0, max_guest_size: float | None = None
    ) -> Iterator[OpenBatch]:
        """Decode requests that arrive one by one, as a server does, and nothing else meanwhile.

        ``max_batch_size`` is the generator's by default; see ``OpenBatch`` for all three.

        Raises:
            RequestError: while the generator decodes.
        """
        limits = max_batch_size or self._max_batch_size, self._max_cache_bytes, max_prefix_bytes
        with self._binding.alone() as binding, OpenBatch(binding, *limits, self._huge_pages, max_guest_size) as batch:
            yield batch

    def refusals(self, prompts: list[Any], **settings: Any) -> list[Exception | None]:
        """Return the error with which ``generate`` would refuse each prompt, or None; decodes nothing.

        Raises:
            SpecdecError: for settings that are refused.
        """
        request = GenerationRequest.of(prompts, **settings)
        with self._binding.alone() as binding:
            made = binding.builder.build(request, [binding.strategies.own])
        return [each if isinstance(each, Exception) else None for each in made]

    def close(self) -> None:
        """Release what the strategies use, and the model, whose weights are restored.

        Weights stay packed while another generator uses them. An open stream is finished first. A closed generator may
        be used again; it then binds the model again.
        """
        self._binding.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RequestError("a generator can't be copied or pickled, as it holds a lock: make another one of its model")

    def _decode(
        self, request: GenerationRequest, proposer: ProposerChoice, on_step: OnStep, wants_text: bool = False
    ) -> Iterator[Chunk]:
        if any(context is not None and context.owner is not self for context in request.contexts):
            raise RequestError("a context of another generator was given: make one with this generator's context()")
        with self.open_batch() as batch:
            handles = batch.add_request(request, proposer, None, wants_text)
            for index, handle in enumerate(handles):
                if isinstance(handle, Exception):
                    yield Chunk((), "", index, Result((), None, "error", Stats(), 0, self.numerics, handle))
            with streaming(request.streamer, handles) as put:
                while (record := batch.advance()) is not None:
                    if on_step is not None:
                        on_step(record)
                    for outcome in record.outcomes:
                        put(outcome.tokens)
                        if not outcome.is_chunk or outcome.finish_reason is not None:
                            yield batch.chunk(outcome)
