"""The parts of calls, passed on as they are read or call by call."""

from specdec.apps.serving.parsed_answer import AnswerPiece, CallPiece


class CallParts:
    """Collects the parts of a call until they may be passed on.

    Args:
        holds_calls: True if a call is passed on only once its arguments are whole.

    Attributes:
        held: the pieces of the current call that aren't passed on yet.
    """

    def __init__(self, holds_calls: bool) -> None:
        self._holds_calls = holds_calls
        self.held: list[AnswerPiece] = []

    def add(self, part: CallPiece, is_complete: bool) -> list[AnswerPiece]:
        """Return the held pieces and the part's own; nothing while the call is held back."""
        self.held.append(AnswerPiece(call=part))
        if self._holds_calls and not is_complete:
            return []
        pieces, self.held = self.held, []
        return pieces
