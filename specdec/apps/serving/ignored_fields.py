"""Known fields that are accepted only at values without effect; any other value is refused."""

import json
from collections.abc import Mapping
from typing import Any

from specdec.apps.serving.errors import ApiError

# Fields of OpenAI, vLLM, SGLang and llama.cpp, with the values that have no effect. null never has.
_SHARED: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "cache_prompt": (True, False),  # prefix reuse never changes an answer
    "cache_salt": (),
    "custom_logit_processor": (),
    "detokenize": (True,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "early_stopping": (False,),
    "ebnf": ("",),
    "grammar": ("",),
    "guided_decoding_backend": (),
    "guided_grammar": ("",),
    "guided_regex": ("",),
    "id_slot": (-1,),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": ("",),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "n_keep": (0,),
    "n_probs": (0,),
    "no_repeat_ngram_size": (0,),
    "no_stop_trim": (False,),
    "priority": (0,),
    "prompt_logprobs": (),
    "regex": ("",),
    "repeat_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ("", []),
    "tfs_z": (1,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
}
_COMPLETION: Mapping[str, tuple[object, ...]] = {
    "add_special_tokens": (True,),
    "logprobs": (False,),
    "suffix": ("",),
}
_CHAT: Mapping[str, tuple[object, ...]] = {
    "add_special_tokens": (False,),  # the template writes them
    "audio": (),
    "chat_template": ("",),
    "echo": (False,),
    "function_call": ("none", "auto"),  # the older names of tool_choice and tools
    "functions": ([],),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "thinking_token_budget": (),
    "top_logprobs": (0,),
    "web_search_options": (),
}
COMPLETION_FIELDS = {**_SHARED, **_COMPLETION}
CHAT_FIELDS = {**_SHARED, **_CHAT}


def without_ignored_fields(
    fields: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]], accepted: Mapping[str, object]
) -> dict[str, Any]:
    """Return a request's fields without those that have no effect.

    Args:
        neutral: by field, the values without effect.
        accepted: the fields of the endpoint's schema, which checks their other values.

    Raises:
        ApiError: for a known field with an unsupported value.
    """
    left = {}
    for name, value in fields.items():
        values = neutral.get(name, ())
        if value is None or any(_is_same(value, each) for each in values):
            continue
        if name in neutral and name not in accepted:
            allowed = ", ".join(map(json.dumps, [*values, None]))
            message = f"{name} isn't supported with this value: leave it out, or give {allowed}."
            raise ApiError(400, message, name, "unsupported_value")
        left[name] = value
    return left


def _is_same(value: object, neutral: object) -> bool:
    """Compare as JSON values: 1 equals 1.0, but true doesn't equal 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
