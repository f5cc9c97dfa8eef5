"""The longest text that a model's configuration allows."""

from typing import Any

from specdec.errors import RequestError, plural


def position_limit(config: Any) -> int | None:
    """Return the largest number of positions that the model supports; None if its configuration has no limit.

    Rotary frequencies of the kind ``longrope`` depend on the longest position of a pass, so beyond their original
    length a token's logits depend on the rest of the pass: the limit is that length. The same is true of Doge's dynamic
    masks beyond their ``keep_window_size``.
    """
    names = ("max_position_embeddings", "max_seq_len", "n_positions")
    limits = [limit for name in names if (limit := getattr(config, name, None)) is not None][:1]
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if parameters.get("rope_type") == "longrope":
            original = getattr(config, "original_max_position_embeddings", None)
            limits.append(parameters.get("original_max_position_embeddings") or original or limits[0])
    limits += [window] if (window := getattr(config, "keep_window_size", None)) else []
    return min(limits, default=None)


def check_length(num_tokens: int, max_new_tokens: int, limit: int) -> None:
    """Refuse a prompt whose text may need more positions than the model supports.

    Raises:
        RequestError: with the numbers.
    """
    needed = num_tokens + max_new_tokens - 1  # nothing follows the last token, so it takes no position
    if needed > limit:
        raise RequestError(
            f"the prompt has {plural(num_tokens, 'token')} and max_new_tokens={max_new_tokens} would need {needed} "
            f"positions, but the model supports {limit}: shorten one of them"
        )
