"""Recordings in WAV files, by Python's own reader; other kinds need a decoder of the caller's."""

import io
import wave

import numpy as np

from specdec.errors import RequestError, in_one_line

_MOST_SECONDS = 3600
_DTYPES = {1: "u1", 2: "<i2", 4: "<i4"}


def read_wav(content: bytes) -> tuple[np.ndarray, int]:
    """Return the samples of a file, from -1 to 1, mono, and their number per second.

    Raises:
        RequestError: for a file that is damaged, too long, or no WAV file of 8, 16 or 32 bits.
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            if file.getnframes() > rate * _MOST_SECONDS:
                raise RequestError(f"the recording is longer than {_MOST_SECONDS // 60} minutes: give it in parts")
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise RequestError(f"the recording isn't a WAV file that can be read: {in_one_line(error)}") from error
    if width not in _DTYPES:
        raise RequestError(f"the recording has {8 * width} bits per sample: save it with 16")
    numbers = np.frombuffer(frames, _DTYPES[width]).astype(np.float32)
    scaled = numbers / 128.0 - 1.0 if width == 1 else numbers / 2.0 ** (8 * width - 1)
    return scaled.reshape(-1, channels).mean(1), rate
