"""Stretches of a prompt whose tokens all see one another, as in Gemma's images and PaliGemma's prompts."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from specdec.errors import RequestError
from specdec.models.attention_switch import switched
from specdec.models.notes import lock_of

TOKEN_TYPES = "token_type_ids", "mm_token_type_ids"


def blocks_of(model: Any, num_tokens: int, types: Mapping[str, torch.Tensor]) -> tuple[range, ...]:
    """Return the blocks of a prompt, by the masks that the model itself makes for it; () for a causal prompt.

    Args:
        types: by name, kinds of tokens by which the model makes masks, ``(tokens,)``.

    Raises:
        RequestError: for a mask that isn't causal except for blocks.
    """
    make = getattr(model, "create_masks_for_generate", None)
    if make is None or not types.keys() & inspect.signature(make).parameters.keys():
        return ()
    vectors = torch.zeros(1, num_tokens, 1, device=model.device)
    given = {name: each[None].to(model.device) for name, each in types.items()}
    config = model.config.get_text_config()
    with lock_of(model), switched(config, "sdpa"):
        masks = make(
            config=model.config, inputs_embeds=vectors, attention_mask=None, cache=None, position_ids=None, **given
        )
    by_kind = masks if isinstance(masks, dict) else {"full_attention": masks}
    seen = by_kind.get("full_attention", next(iter(by_kind.values())))
    if seen is None:  # the kernel's own causal mask serves
        return ()
    visible = seen[0, 0].cpu() if seen.dtype == torch.bool else seen[0, 0].cpu() == 0
    ahead = (visible.triu(1) * torch.arange(num_tokens)).amax(1).tolist()  # the last token that each sees after it
    blocks = list[range]()
    for place, last in enumerate(ahead):
        if last > place and (not blocks or place >= blocks[-1].stop):
            blocks.append(range(place, last + 1))
    expected = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    for block in blocks:
        expected[block.start : block.stop, block.start : block.stop] = True
    if not torch.equal(visible, expected) and "full_attention" in by_kind:
        raise RequestError(
            f"{type(model).__name__} masks this prompt in a way that specdec doesn't know: use its own generate()"
        )
    return tuple(blocks)
