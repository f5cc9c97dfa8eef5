"""The server's options: what it answers to, and the bounds that no request gets past."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class ServerOptions(BaseModel):
    """A server's settings, besides the generator that it serves.

    Attributes:
        name: the model's, as requests call it.
        api_keys: any of which a request must have; with none, all are served.
        origins: whose pages may read answers (CORS).
        hosts: names by which requests may call the server, besides its own address; where it listens beyond this
            machine, any name will do unless some are given.
        offered: strategies under names of the operator's, which may name files and models, as requests can't.
        max_batch_size: texts decoded side by side.
        max_queue: texts that wait; more are refused.
        max_prefix_bytes: of keys and values kept for requests that begin alike.
        max_body_bytes, max_n, max_texts: of one request; texts are its prompts times its ``n``.
        max_prompt_tokens: of one prompt; None for what the model takes.
        default_max_tokens: new tokens of a chat answer that names no number.
        timeout: seconds from a request's arrival, after which it ends with what it has.
        body_timeout: seconds in which a body must have come.
        header_timeout: seconds in which a request's header must have come, once it has begun.
        idle_timeout: seconds for which a connection stays open without a request.
        max_connections: open at a time; where another one comes, the one that has waited longest is closed.
        logs_prompts: prompts and answers go to the log as well.
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
    default_max_tokens: int = Field(default=1024, ge=1)
    timeout: float = Field(default=600.0, gt=0.0)
    body_timeout: float = Field(default=30.0, gt=0.0)
    header_timeout: float = Field(default=10.0, gt=0.0)
    idle_timeout: float = Field(default=30.0, gt=0.0)
    max_connections: int = Field(default=1024, ge=1)
    logs_prompts: bool = False
