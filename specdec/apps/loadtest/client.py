"""One streamed request to an OpenAI-compatible server, and the arrival times of its parts."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from specdec.apps.comparison.prompts import EvaluationPrompt, are_messages, as_messages
from specdec.errors import RequestError


@dataclass(slots=True)
class Answered:
    """A request and its answer.

    Attributes:
        prompt: the prompt's name.
        due: the scheduled time, in seconds since the start of the run; latencies are counted from then.
        arrivals: the arrival times of parts with text, in seconds since ``due``.
        num_tokens: as reported by the server, or else the number of parts.
        seconds: from ``due`` to the end.
        status: the HTTP status; 0 without an answer.
        error: why it failed, or "".
    """

    prompt: str
    due: float
    arrivals: list[float] = field(default_factory=list)
    num_tokens: int = 0
    text: str = ""
    seconds: float = 0.0
    status: int = 0
    error: str = ""

    @property
    def has_succeeded(self) -> bool:
        """True if an answer with text was received."""
        return not self.error and bool(self.arrivals)

    @property
    def first(self) -> float:
        """Seconds to the first part with text."""
        return self.arrivals[0]

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first part; None for an answer of one part or token."""
        took = self.arrivals[-1] - self.arrivals[0]
        return took / (self.num_tokens - 1) if len(self.arrivals) > 1 and self.num_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between parts."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address, and the common parts of all requests.

    Attributes:
        url: up to ``/v1``, which may be left out.
        chat: send all texts to /chat/completions, as a user's message; instructions and messages always go there.
        fields: fields of every body besides the prompt.
    """

    url: str
    chat: bool
    fields: Mapping[str, Any]
    api_key: str = ""

    @property
    def base(self) -> str:
        """The address up to ``/v1``, inclusive."""
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    @property
    def headers(self) -> dict[str, str]:
        """The headers: the API key, if there is one."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def request(self, prompt: EvaluationPrompt) -> tuple[str, dict[str, Any]]:
        """Return the URL and the body of a request."""
        given = prompt.prompt
        common = {"stream": True, "stream_options": {"include_usage": True}, **self.fields}
        if isinstance(given, str) and (self.chat or prompt.is_instruction):
            given = as_messages(given)
        if are_messages(given):
            return f"{self.base}/chat/completions", {"messages": given, **common}
        return f"{self.base}/completions", {"prompt": given, **common}


async def first_model(address: Address) -> str:
    """Return the first model that a server lists.

    Raises:
        RequestError: if it lists none, or can't be reached.
    """
    if not address.base.startswith(("http://", "https://")):
        raise RequestError(f"{address.url} is not a server's address: it begins with http:// or https://")
    try:
        async with httpx.AsyncClient(timeout=10.0) as client:
            answer = await client.get(f"{address.base}/models", headers=address.headers)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.TransportError as error:
        raise RequestError(f"no server answers at {address.base} ({error}): is it running?") from None
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise RequestError(f"{address.base}/models lists no model ({error}): give --model") from None


async def send(
    client: httpx.AsyncClient, address: Address, prompt: EvaluationPrompt, began: float, due: float
) -> Answered:
    """Send a request and record when its parts arrive, or its failure."""
    answered = Answered(prompt.name, due)
    url, body = address.request(prompt)
    try:
        async with client.stream("POST", url, json=body, headers=address.headers) as response:
            answered.status = response.status_code
            if response.status_code != 200:
                answered.error = _said(await response.aread())
            else:
                is_whole = False
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        is_whole |= _note(answered, line[5:].strip(), time.perf_counter() - began - due)
                answered.error = answered.error or ("" if is_whole else "the stream ended early")
    except httpx.HTTPError as error:
        answered.error = f"{type(error).__name__}: {error}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        answered.error = f"a part of the stream doesn't have OpenAI's format: {type(error).__name__}: {error}"
    answered.seconds = time.perf_counter() - began - due
    answered.num_tokens = answered.num_tokens or len(answered.arrivals)
    return answered


def _note(answered: Answered, data: str, now: float) -> bool:
    """Record a part of a stream; return True at the end of the answer."""
    if data == "[DONE]":
        return True
    part = json.loads(data)
    if part.get("error"):
        answered.error = str(part["error"].get("message", part["error"]))
        return True
    usage, has_ended = part.get("usage"), False
    if usage:
        answered.num_tokens = int(usage["completion_tokens"])
    for choice in part.get("choices") or ():
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        has_ended |= choice.get("finish_reason") is not None
        if text:
            answered.arrivals.append(now)
            answered.text += text
    return has_ended


def _said(body: bytes) -> str:
    """Return the message of an error body, in one line."""
    try:
        said = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        said = body.decode(errors="replace")
    return " ".join(str(said).split())[:200] or "no message"
