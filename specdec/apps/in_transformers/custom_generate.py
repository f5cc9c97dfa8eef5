"""specdec inside ``model.generate``: one more argument in existing code.

transformers prepares a call as for its own decoding, and passes ids, mask, processors, criteria and generation config
to a callable. Two arguments aren't passed, ``streamer`` and ``assistant_model``. Without the streamer its consumer
would wait forever, so both are read from the frame of the call to ``generate``. A third, ``tokenizer``, is dropped
before transformers itself makes a criterion of ``stop_strings`` with it; see ``_Signature``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from specdec.apps.in_transformers.generator_cache import kept_generator
from specdec.errors import RequestError
from specdec.generator import Generator

if TYPE_CHECKING:  # transformers takes seconds to import; the caller has imported it already
    import torch
    from transformers import GenerationConfig

    from specdec.constraints.base import Constraint

Options = ParamSpec("Options")
Made = TypeVar("Made")


class _Signature:
    """The parameters of a call of a ``CustomGenerate``, by which ``generate`` decides what to pass.

    It takes the tokenizer out of its arguments, and only then reads the signature and looks there for what a callable
    wants. So the tokenizer is put back first, or stop strings would be refused for want of it.

    This is also the last moment before images are encoded, and so the one to refuse beams.
    """

    def __get__(self, made: "CustomGenerate | None", _: type) -> inspect.Signature:
        if made is None:
            raise AttributeError("__signature__")  # the class is called as it says itself
        signature, frame = inspect.signature(made.__call__), inspect.currentframe()
        while frame is not None and frame.f_code.co_name != "_extract_generation_mode_kwargs":
            frame = frame.f_back
        if frame is not None and frame.f_locals.get("custom_generate") is made:
            taken, arguments = (frame.f_locals.get(name) or {} for name in ("generation_mode_kwargs", "kwargs"))
            call = {} if frame.f_back is None else frame.f_back.f_locals
            own = call.get("generation_config") or getattr(frame.f_locals.get("self"), "generation_config", None)
            _refuse_beams(arguments.get("num_beams") or getattr(own, "num_beams", None))
            arguments |= {name: taken[name] for name in ("tokenizer",) if name in taken}
        return signature


@dataclass(frozen=True)
class CustomGenerate:
    """A function for ``model.generate(custom_generate=…)``, made by ``custom_generate``.

    Attributes:
        options: names and values of the generators' options, as pairs.
        constraint: of the new text.
        reference: text or ids that the new text is expected to resemble, or one for each row.
    """

    options: tuple[tuple[str, Any], ...]
    constraint: "Constraint | None" = None
    reference: Any = field(default=None, hash=False)
    __signature__ = _Signature()

    def __call__(
        self,
        model: Any,
        input_ids: "torch.Tensor",
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: "GenerationConfig",
        tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode a call that ``generate`` has prepared.

        The signature has no further parameters because ``generate`` would also pass their unprepared values; the mask
        is in ``model_kwargs``, and what the tokenizer is for has been done.

        Returns:
            Prompts and new tokens, (batch, tokens), or a ``GenerateDecoderOnlyOutput``, as from ``generate``.

        Raises:
            SpecdecError: for unsupported arguments, by name, and if decoding fails.
        """
        from specdec.apps.in_transformers.call import GenerateCall

        withheld = _withheld()
        streamer = withheld.get("streamer")
        call = GenerateCall(
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            streamer,
            self.constraint,
            self.reference,
        )
        call.check(model, model_kwargs, withheld.get("assistant_model"))
        return call.decode(kept_generator(model, self.options, lambda: Generator(model, **dict(self.options))))


def _refuse_beams(num_beams: int | None) -> None:
    if num_beams is not None and num_beams > 1:
        raise RequestError(
            f"custom_generate has no beam search, and num_beams={num_beams} (of the call, or of the model's "
            "generation_config): give num_beams=1, or leave custom_generate out for this call"
        )


def _refuses_to_decode(make: Callable[Options, Made]) -> Callable[Options, Made]:
    """Answer ``custom_generate=specdec.custom_generate``, which ``generate`` would call with the prompt."""

    @wraps(make)
    def checked(*args: Options.args, **kwargs: Options.kwargs) -> Made:
        if "generation_config" in kwargs:
            raise RequestError("custom_generate makes the function: model.generate(custom_generate=custom_generate())")
        return make(*args, **kwargs)

    return checked


@_refuses_to_decode
def custom_generate(  # noqa: PLR0913 - as of Generator
    proposer: Any = "auto",
    *,
    verifier: Any = "match",
    numerics: str = "auto",
    weights: str = "auto",
    mask: Any = None,
    backend: str = "auto",
    max_batch_size: int = 8,
    constraint: "Constraint | None" = None,
    reference: Any = None,
    tokenizer: Any = None,
) -> CustomGenerate:
    """Make ``model.generate(**inputs, custom_generate=specdec.custom_generate())`` decode with specdec.

    The generator is made at a model's first call and cached with the model;
    ``specdec.apps.in_transformers.release(model)`` closes it. Greedy text is the same as ``generate``'s.
    Sampled text has the same distribution and is reproduced by ``torch.manual_seed``, but it isn't the text that
    ``generate`` itself would draw.

    Args:
        proposer, verifier, numerics, weights, mask, backend, max_batch_size: as for ``Generator``.
        constraint: the texts that are allowed, such as ``JsonSchema(Person)`` from ``specdec.constraints``.
        reference: text or ids that the new text is expected to resemble, such as the one to correct, to draft from; a
            list has one for each row.
        tokenizer: the model's, which constraints on text, and a reference that is text, need.

    Raises:
        RequestError: for arguments that can't be hashed, such as a list; if ``generate`` calls this function itself.
    """
    options = {
        "proposer": proposer,
        "verifier": verifier,
        "numerics": numerics,
        "weights": weights,
        "mask": mask,
        "backend": backend,
        "max_batch_size": max_batch_size,
    } | ({} if tokenizer is None else {"tokenizer": tokenizer})
    for name, value in options.items():
        try:
            hash(value)
        except TypeError:
            raise RequestError(f"{name}={value!r}: give a plug-in's name or object") from None
    return CustomGenerate(tuple(options.items()), constraint, reference)


def _withheld() -> Mapping[str, Any]:
    """Return the local variables of the running call of ``generate``; {} if the caller is another function."""
    frame = inspect.currentframe()
    for _ in range(2):  # this function's caller is the callable, and its caller ``generate``
        frame = None if frame is None else frame.f_back
    return frame.f_locals if frame is not None and frame.f_code.co_name == "generate" else {}
