"""specdec inside ``model.generate``: one more argument in existing code.

transformers prepares a call as for its own decoding, and hands it to a callable: ids and mask, processors, criteria,
and the generation config. It keeps back two arguments, ``streamer`` and ``assistant_model``. Whoever waits for a
streamer would wait for ever, so both are read from the frame of the call to ``generate``.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.in_transformers.generator_cache import kept_generator

if TYPE_CHECKING:  # transformers takes seconds to import, and whoever calls this has done so
    import torch
    from transformers import GenerationConfig


@dataclass(frozen=True)
class CustomGenerate:
    """A function for ``model.generate(custom_generate=…)``, made by ``custom_generate``.

    Attributes:
        options: of the generators that it makes, by name, as pairs.
    """

    options: tuple[tuple[str, Any], ...]

    def __call__(
        self,
        model: Any,
        input_ids: "torch.Tensor",
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: "GenerationConfig",
        **model_kwargs: Any,
    ) -> Any:
        """Decode what ``generate`` has prepared.

        Further parameters would be handed over a second time, before they are prepared: the mask is in
        ``model_kwargs``.

        Returns:
            Prompts and new tokens, (batch, tokens), or a ``GenerateDecoderOnlyOutput``, as ``generate`` does.

        Raises:
            SpecdecError: for what can't be honoured, by name, and for what fails.
        """
        from specdec.in_transformers.call import Call

        withheld = _withheld()
        call = Call(input_ids, logits_processor, stopping_criteria, generation_config, withheld.get("streamer"))
        call.check(model_kwargs, withheld.get("assistant_model"), "image" in model.input_modalities)
        return call.decode(kept_generator(model, self.options, lambda: Generator(model, **dict(self.options))))


def custom_generate(
    proposer: Any = "auto",
    *,
    verifier: Any = "match",
    numerics: str = "auto",
    weights: str = "auto",
    mask: Any = None,
    backend: str = "auto",
    max_batch_size: int = 8,
) -> CustomGenerate:
    """Make ``model.generate(**inputs, custom_generate=specdec.custom_generate())`` decode with specdec.

    The generator is made at a model's first call and cached with the model;
    ``specdec.in_transformers.generator_cache.release(model)`` lets go of it. Greedy text is ``generate``'s own. Sampled
    text follows the same distribution, and repeats under ``torch.manual_seed``; it isn't the text that
    ``generate`` itself would draw.

    Args:
        proposer, verifier, numerics, weights, mask, backend, max_batch_size: as of ``Generator``.

    Raises:
        RequestError: for arguments that can't be compared later, such as a list.
    """
    options = {
        "proposer": proposer,
        "verifier": verifier,
        "numerics": numerics,
        "weights": weights,
        "mask": mask,
        "backend": backend,
        "max_batch_size": max_batch_size,
    }
    for name, value in options.items():
        try:
            hash(value)
        except TypeError:
            raise RequestError(f"{name}={value!r}: give a text that names a plug-in, or its object") from None
    return CustomGenerate(tuple(options.items()))


def _withheld() -> Mapping[str, Any]:
    """The local names of the call of ``generate`` that is under way; empty where somebody else called."""
    frame = inspect.currentframe()
    for _ in range(2):  # this function's caller is the callable, and its caller ``generate``
        frame = None if frame is None else frame.f_back
    return frame.f_locals if frame is not None and frame.f_code.co_name == "generate" else {}
