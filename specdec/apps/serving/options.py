"""The server's options: names, keys and limits."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class ServerOptions(BaseModel):
    """A server's settings, besides the generator that it serves.

    Attributes:
        name: the model's name in requests.
        api_keys: a request must have one of these; if empty, no key is needed.
        origins: origins whose pages may read answers (CORS).
        hosts: allowed host names besides the server's own address. If it listens on other than loopback addresses, all
            are allowed unless some are given.
        offered: the operator's strategies by name; unlike those of requests, they may use files and models.
        max_batch_size: texts decoded together.
        max_queue: waiting texts; further ones are refused.
        max_prefix_bytes: keys and values cached for requests with a common prefix.
        max_body_bytes, max_n, max_texts: limits of one request; texts are its prompts times its ``n``.
        max_prompt_tokens: longest prompt accepted; None for the model's limit.
        max_strategy_size: of a strategy that a request names, in strategies with default options; and of those together
            that stay bound for later requests.
        default_max_tokens: new tokens of a chat answer if the request sets no number.
        timeout: seconds from a request's arrival, after which its texts end early.
        body_timeout: seconds within which the whole body must be received.
        header_timeout: seconds within which a request's header must be received, from its first byte.
        idle_timeout: seconds for which a connection stays open without a request.
        max_connections: open connections; for another one, the one that has waited longest is closed.
        tool_parser: the format of tool calls and reasoning, instead of the one of the chat template.
        logs_prompts: also log prompts and answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    api_keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    offered: Mapping[str, str] = Field(default_factory=dict)
    max_batch_size: int = Field(default=32, ge=1)
    max_queue: int = Field(default=256, ge=0)
    max_prefix_bytes: int = Field(default=1 << 30, ge=0)
    max_body_bytes: int = Field(default=4 << 20, ge=1)
    max_n: int = Field(default=16, ge=1)
    max_texts: int = Field(default=64, ge=1)
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    max_strategy_size: float = Field(default=8.0, ge=1.0)
    default_max_tokens: int = Field(default=1024, ge=1)
    timeout: float = Field(default=600.0, gt=0.0)
    body_timeout: float = Field(default=30.0, gt=0.0)
    header_timeout: float = Field(default=10.0, gt=0.0)
    idle_timeout: float = Field(default=30.0, gt=0.0)
    max_connections: int = Field(default=1024, ge=1)
    tool_parser: str | None = None
    logs_prompts: bool = False
