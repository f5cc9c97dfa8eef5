"""Fields of a request that exclude or need one another."""

from specdec.apps.serving.chat_template import NOT_THE_TEMPLATES
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.schemas import ChatBody, Sampling


def check_without_stream(body: Sampling) -> None:
    """Raise ApiError if a request without a stream has fields that need one."""
    if body.stream_options is not None and any(body.stream_options.model_dump().values()):
        raise ApiError(400, "stream_options need stream to be true.", "stream_options", "invalid_value")
    if body.include_steps:
        raise ApiError(400, "include_steps needs stream to be true.", "include_steps", "invalid_value")


def check_chat(body: ChatBody) -> None:
    """Raise ApiError if fields of a chat request contradict one another, or options aren't the template's."""
    if body.add_generation_prompt and body.continue_final_message:
        message = "add_generation_prompt and continue_final_message are both true: give one."
        raise ApiError(400, message, "continue_final_message", "invalid_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", "top_logprobs", "invalid_value")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise ApiError(400, "max_tokens and max_completion_tokens differ: give one.", "max_tokens", "invalid_value")
    if refused := sorted(NOT_THE_TEMPLATES & set(body.chat_template_kwargs or ())):
        message = f"{', '.join(refused)}: not an option of the template's own."
        raise ApiError(400, message, "chat_template_kwargs", "invalid_value")
