"""Stretches of a prompt whose tokens all see one another, as in Gemma's images and PaliGemma's prompts."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from specdec.errors import RequestError
from specdec.layout import Window
from specdec.models.modalities import masks_by_types, types_for_masks
from specdec.models.notes import lock_of

_Blocks = tuple[tuple[range, ...], frozenset[str] | None]


def blocks_of(model: Any, num_tokens: int, types: Mapping[str, torch.Tensor]) -> _Blocks:
    """Return the blocks of a prompt, by the masks that the model itself makes for it; () for a causal prompt.

    Args:
        types: by name, kinds of tokens by which the model makes masks, ``(tokens,)``.

    Returns:
        The blocks, and the kinds of attention layer that have them; None for all kinds.

    Raises:
        RequestError: for a mask that isn't causal except for blocks.
    """
    if not types.keys() & types_for_masks(model):
        if masks_by_types(model):
            raise RequestError(needs_types(model))
        return (), None
    from specdec.models.architecture import attention_kinds, name_of  # imports transformers, which takes seconds

    windows = attention_kinds(model.config.get_text_config(), name_of(model), takes_states=True)
    found = {kind: _blocks_in(mask) for kind, mask in _own_masks(model, num_tokens, types, windows).items()}
    blocks = max((each for each, _ in found.values()), key=len, default=())
    for kind, (own, visible) in found.items():
        if own not in ((), blocks) or not torch.equal(visible, _expected(own, num_tokens, windows[kind])):
            raise RequestError(
                f"{type(model).__name__} masks this prompt in a way that specdec doesn't know: use its own generate()"
            )
    kinds = frozenset(kind for kind, (own, _) in found.items() if own)
    return blocks, None if kinds == windows.keys() else kinds


def needs_types(model: Any) -> str:
    """Return why a model like PaliGemma doesn't read ids alone."""
    return f"{type(model).__name__} reads a prompt by its token types: give the output of its processor"


def _own_masks(
    model: Any, num_tokens: int, types: Mapping[str, torch.Tensor], kinds: Collection[str]
) -> dict[str, torch.Tensor]:
    """Return what each token sees in each kind of layer, boolean, ``(tokens, tokens)``."""
    from specdec.models.attention_switch import switched  # imports transformers, which takes seconds

    vectors = torch.zeros(1, num_tokens, 1, device=model.device)
    given = {name: each[None].to(model.device) for name, each in types.items()}
    with lock_of(model), switched(model.config.get_text_config(), "sdpa"):
        masks = model.create_masks_for_generate(
            config=model.config, inputs_embeds=vectors, attention_mask=None, cache=None, position_ids=None, **given
        )
    by_kind = masks if isinstance(masks, dict) else dict.fromkeys(kinds, masks)
    known = {kind: by_kind[kind] for kind in kinds if by_kind.get(kind) is not None}  # None: the kernel's causal mask
    return {kind: (mask if mask.dtype == torch.bool else mask == 0)[0, 0].cpu() for kind, mask in known.items()}


def _blocks_in(visible: torch.Tensor) -> tuple[tuple[range, ...], torch.Tensor]:
    """Return the stretches whose first token sees the last one, and the mask."""
    num_tokens, blocks = len(visible), list[range]()
    ahead = (visible.triu(1) * torch.arange(num_tokens)).amax(1).tolist()  # the last token that each sees after it
    for place, last in enumerate(ahead):
        if last > place and (not blocks or place >= blocks[-1].stop):
            blocks.append(range(place, last + 1))
    return tuple(blocks), visible


def _expected(blocks: Sequence[range], num_tokens: int, window: Window | None) -> torch.Tensor:
    """Return the mask that specdec makes for such blocks."""
    seen = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    for block in blocks:
        seen[block.start : block.stop, block.start : block.stop] = True
    places = torch.arange(num_tokens)
    return seen if window is None else seen & window.contains(places[:, None], places)
