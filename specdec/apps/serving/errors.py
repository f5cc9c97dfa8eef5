"""Errors in the format of OpenAI's API."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from specdec.errors import SpecdecError

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(SpecdecError):
    """A request's refusal or failure: a status and a message.

    Attributes:
        param: the invalid field, if it is one.
        code: a machine-readable reason.
        headers: additional headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """Return the answer's body."""
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def invalid(place: str, reason: str, code: str = "invalid_value") -> ApiError:
    """Return the error for a field with an invalid value; ``reason`` needs no full stop."""
    end = "" if reason.endswith((".", "?", "!")) else "."
    return ApiError(400, f"Invalid value for '{place}': {reason}{end}", place, code)


def busy(message: str, seconds: float) -> ApiError:
    """Return a 'try again later' error, with the seconds to wait."""
    return ApiError(429, message, code="queue_full", headers={"Retry-After": str(max(1, round(seconds)))})


def of_validation(error: ValidationError) -> ApiError:
    """Return the error for a body that fails validation, with the field of the first fault."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    places = [place for place in fault["loc"] if place != "body"]
    param = "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places).lstrip(".") or None
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"Unrecognized request argument supplied: {param}", param, "unknown_parameter")
    if fault["type"] == "missing" and param:
        return ApiError(400, f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    message = str(fault["msg"]).removeprefix("Value error, ")
    if param is None:
        return ApiError(400, f"Invalid body: {message}.", code="invalid_body")
    return invalid(param, message)
