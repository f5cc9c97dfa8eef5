"""Recordings as forms: the transcripts of a model's own ``generate``, by OpenAI's client and refused in a line."""

import copy
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from specdec import Generator
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.process import prepared
from specdec.apps.serving.transcriptions.transcriber import Stop
from specdec.models import load_pretrained
from specdec.models.attention_switch import switched
from specdec.models.notes import lock_of
from tests.apps.serving.serving import Served, serving
from tests.support.media_models import hum, wav
from tests.support.whisper import own_transcript, whisper

SHORT, LONG = 1.5, 5.0  # seconds, of windows of two


@pytest.fixture(scope="module", name="listening")
def _listening() -> Iterator[Served]:
    with serving(Generator(*copy.deepcopy(whisper()), proposer="prompt_lookup")) as running:
        yield running


def text_of(own: Any) -> str:
    return str(whisper()[1].tokenizer.decode(own["sequences"][0], skip_special_tokens=True)).strip()


def post(served: Served, content: bytes | None = None, headers: Any = None, **fields: Any) -> httpx.Response:
    file = wav(hum(1, SHORT)) if content is None else content
    form = {name: value for name, value in {"model": "demo", **fields}.items() if value is not None}
    return httpx.post(
        f"{served.url}/v1/audio/transcriptions", files={"file": ("a.wav", file)}, data=form, headers=headers, timeout=60
    )


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_a_recordings_text_is_generates(listening: Served, seconds: float) -> None:
    texts = []
    for seed in (1, 2):
        expected = text_of(own_transcript(hum(seed, seconds), timed=False, language="de"))
        with listening.openai() as client:
            given = ("a.wav", wav(hum(seed, seconds)))
            reply = client.audio.transcriptions.create(model="demo", file=given, language="de")
        assert reply.text == expected
        texts.append(expected)
    assert texts[0] != texts[1], "the recording decides"
    as_text = post(listening, wav(hum(1, seconds)), language="de", response_format="text", temperature="1e-9")
    assert (as_text.headers["content-type"], as_text.text) == ("text/plain; charset=utf-8", f"{texts[0]}\n")


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_segments_are_generates(listening: Served, seconds: float) -> None:
    own = own_transcript(hum(3, seconds), timed=True, language="en")
    with listening.openai() as client:
        reply = client.audio.transcriptions.create(
            model="demo",
            file=("a.wav", wav(hum(3, seconds))),
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["segment"],
        )
    assert (reply.language, reply.duration, reply.text) == ("english", seconds, text_of(own))
    assert reply.segments
    assert [segment.tokens for segment in reply.segments] == [each["tokens"].tolist() for each in own["segments"][0]]
    starts = [round(float(each["start"]), 2) for each in own["segments"][0]]
    assert [segment.start for segment in reply.segments] == starts
    assert [segment.id for segment in reply.segments] == [*range(len(starts))]


def test_a_language_is_detected_and_a_prompt_is_read(listening: Served) -> None:
    model, processor = whisper()
    features = processor.feature_extractor(hum(4, SHORT), sampling_rate=16_000, return_tensors="pt")["input_features"]
    found = {value: name for name, value in model.generation_config.lang_to_id.items()}
    detected = found[int(model.detect_language(input_features=features)[0])][2:-2]
    expected = text_of(own_transcript(hum(4, SHORT), timed=False, language=detected))
    assert post(listening, wav(hum(4, SHORT))).json() == {"text": expected}
    ids = processor.get_prompt_ids("cats", return_tensors="pt")
    own = own_transcript(hum(4, SHORT), timed=False, language="fr", prompt_ids=ids)
    prompted = post(listening, wav(hum(4, SHORT)), language="fr", prompt="cats").json()["text"]
    assert prompted == text_of(own)
    assert prompted != text_of(own_transcript(hum(4, SHORT), timed=False, language="fr"))


def test_several_at_a_time(listening: Served) -> None:
    expected = {seed: text_of(own_transcript(hum(seed, SHORT), timed=False, language="en")) for seed in (1, 2, 3)}
    found = dict[int, str]()

    def ask(seed: int) -> None:
        found[seed] = post(listening, wav(hum(seed, SHORT)), language="en").json()["text"]

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in expected]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "status", "param", "reason"),
    [
        ({"content": b"ID3"}, 400, "file", "isn't a WAV file"),
        ({"content": wav(np.zeros(0))}, 400, "file", "the recording is empty"),
        ({"language": "tlh"}, 400, "language", "give one of de, en, fr"),
        ({"response_format": "srt"}, 400, "response_format", "'json', 'text' or 'verbose_json'"),
        ({"timestamp_granularities[]": "word"}, 400, "timestamp_granularities[][0]", "'segment'"),
        ({"temperature": "warm"}, 400, "temperature", ""),
        ({"temperature": "1.5"}, 400, "temperature", ""),
        ({"stream": "true"}, 400, "stream", ""),
        ({"colour": "x"}, 400, "colour", "Unrecognized"),
        ({"model": None}, 400, "model", "Missing"),
        ({"model": "gpt"}, 404, "model", "does not exist"),
        ({"prompt": "<|en|>"}, 400, "prompt", "disallowed special token"),
        ({"headers": {"origin": "https://other.example"}}, 403, None, "https://other.example"),
    ],
)
def test_refusals(listening: Served, fields: dict[str, Any], status: int, param: str | None, reason: str) -> None:
    reply = post(listening, **fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, param), error
    assert reason in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (b"{}", "application/json", "as a form"),
        (b"", "multipart/form-data", "as a form"),
        (b"--x\r\n", "multipart/form-data; boundary=x", "is cut"),
        (b"--x\r\n\r\nhello\r\n--x--", "multipart/form-data; boundary=x", "has no name"),
        (b"--x\r\nA: b\r\n\r\n\r\n" * 99 + b"--x--", "multipart/form-data; boundary=x", "more than 64 fields"),
        (
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\r\n--x--',
            "multipart/form-data; boundary=x",
            "UTF-8",
        ),
    ],
)
def test_forms_that_arent(listening: Served, content: bytes, kind: str, reason: str) -> None:
    url = f"{listening.url}/v1/audio/transcriptions"
    reply = httpx.post(url, content=content, headers={"content-type": kind}, timeout=60)
    assert reply.status_code == 400
    assert reason in reply.json()["error"]["message"]


def test_a_recording_is_encoded_between_the_passes_of_others(listening: Served) -> None:
    model, is_over = listening.generator.model, threading.Event()

    def run_passes() -> None:
        while not is_over.is_set():
            with lock_of(model), switched(model.config.get_text_config(), "specdec_exact"):
                time.sleep(1e-3)
            time.sleep(1e-4)

    others = threading.Thread(target=run_passes)
    others.start()
    try:
        replies = [post(listening, wav(hum(2, SHORT))) for _ in range(3)]
    finally:
        is_over.set()
        others.join(60)
    assert [reply.text for reply in replies] == [replies[0].text] * 3
    assert replies[0].status_code == 200, replies[0].text


def test_a_folder_is_served_and_text_is_refused(tmp_path: Path) -> None:
    model, processor = whisper()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    generator = Generator(*load_pretrained(str(tmp_path)), proposer="prompt_lookup")
    prepared(generator, ServerOptions(name="demo"), "prompt_lookup")
    with serving(generator) as running:
        expected = text_of(own_transcript(hum(2, SHORT), timed=False, language="en"))
        assert post(running, wav(hum(2, SHORT)), language="en").json() == {"text": expected}
        reply = running.post("/v1/completions", {"model": "demo", "prompt": "a"})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


def test_a_model_that_doesnt_transcribe_says_so(served: Served) -> None:
    with served.openai() as client, pytest.raises(openai.BadRequestError, match="doesn't transcribe"):
        client.audio.transcriptions.create(model="demo", file=("a.wav", wav(hum(1))))


def test_a_transcription_ends_at_its_time() -> None:
    with serving(Generator(*copy.deepcopy(whisper()), proposer="prompt_lookup"), timeout=1e-3) as running:
        reply = post(running, wav(hum(1, LONG)))
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "timeout")
        assert running.server.admission.num_texts == 0
    stop = Stop(time.perf_counter() + 60)
    assert not stop.is_due
    stop.set()
    assert stop.is_due
