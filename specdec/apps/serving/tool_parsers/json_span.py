"""Finding the end of a JSON object in a text that arrives in parts."""

import re

_STEP = re.compile(r'["\\{}]')


class JsonSpan:
    """Finds the end of one JSON object, whose text may be cut anywhere."""

    def __init__(self) -> None:
        self._depth, self._is_in_string, self._is_escaped = 0, False, False

    def feed(self, text: str) -> int | None:
        """Return the number of characters of ``text`` up to the object's end; None if it goes on."""
        at = 0
        if self._is_escaped and text:
            self._is_escaped, at = False, 1
        while found := _STEP.search(text, at):
            at = found.end()
            character = found[0]
            if character == '"':
                self._is_in_string = not self._is_in_string
            elif self._is_in_string:
                if character == "\\":
                    self._is_escaped = at == len(text)
                    at += 1
            elif character in "{}":
                self._depth += 1 if character == "{" else -1
                if not self._depth:
                    return at
        return None
