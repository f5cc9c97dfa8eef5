"""Recordings in WAV files, by Python's own reader; other kinds need a decoder of the caller's."""

import io
import wave

import numpy as np

from specdec.errors import RequestError, in_one_line
from specdec.inputs.limits import MOST_SECONDS

_RATES = 4_000, 192_000  # a file may claim any, and be resampled to many times its size
_DTYPES = {1: "u1", 2: "<i2", 4: "<i4"}


def samples_of(content: bytes, sampling_rate: int) -> np.ndarray:
    """Return the samples of a WAV file at a rate, from -1 to 1, mono; resampled linearly from any other rate.

    Raises:
        RequestError: for a file that is damaged, empty, too long, or no WAV file of 8, 16 or 32 bits.
    """
    found, rate = _read(content)
    if rate == sampling_rate:
        return found
    places = np.linspace(0, len(found) - 1, max(1, round(len(found) * sampling_rate / rate)))
    resampled: np.ndarray = np.interp(places, np.arange(len(found)), found).astype(np.float32)
    return resampled


def _read(content: bytes) -> tuple[np.ndarray, int]:
    """Return the samples of a file and their number per second."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            _check(file.getnframes(), rate, width)
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError, ValueError, RuntimeError) as error:
        raise RequestError(f"the recording isn't a WAV file that can be read: {in_one_line(error)}") from error
    whole = len(frames) // (width * channels) * width * channels  # the last may be cut
    if not whole:
        raise RequestError("the recording is empty")
    numbers = np.frombuffer(frames[:whole], _DTYPES[width]).astype(np.float32)
    scaled = numbers / 128.0 - 1.0 if width == 1 else numbers / 2.0 ** (8 * width - 1)
    return scaled.reshape(-1, channels).mean(1), rate


def _check(num_frames: int, rate: int, width: int) -> None:
    if width not in _DTYPES:
        raise RequestError(f"the recording has {8 * width} bits per sample: save it with 16")
    if not _RATES[0] <= rate <= _RATES[1]:
        raise RequestError(f"the recording has {rate} samples per second: save it with {_RATES[0]} to {_RATES[1]}")
    if num_frames > rate * MOST_SECONDS:
        raise RequestError(f"the recording is longer than {MOST_SECONDS // 60} minutes: give it in parts")
