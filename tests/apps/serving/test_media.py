"""Images and recordings in requests: the answers of transformers' own ``generate``, and refusals in a line."""

import base64
import copy
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from specdec import Generator
from specdec.apps.serving.content_parts import without_media
from tests.apps.serving.serving import Served, serving
from tests.support.media_models import data_url, hum, llava, noise, own_answer, png, qwen2_audio, wav

NUM_NEW = 12


@pytest.fixture(scope="module", name="seeing")
def _seeing() -> Iterator[Served]:
    with serving(Generator(*copy.deepcopy(llava()))) as running:
        yield running


@pytest.fixture(scope="module", name="hearing")
def _hearing() -> Iterator[Served]:
    with serving(Generator(*copy.deepcopy(qwen2_audio()))) as running:
        yield running


def image(content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(content), "detail": "auto"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def body(*parts: Any, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": [*parts]}]
    return {"model": "demo", "messages": messages, "max_tokens": NUM_NEW, "temperature": 0, **options}


def answer(served: Served, *parts: Any) -> str:
    reply = served.post("/v1/chat/completions", body(*parts))
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def own(tools: tuple[Any, Any], *parts: Any) -> str:
    model, processor = tools
    ids = own_answer(model, processor, [{"role": "user", "content": [*parts]}], NUM_NEW)
    return str(processor.tokenizer.decode(ids, skip_special_tokens=True))


def test_an_image_is_answered_as_by_generate(seeing: Served) -> None:
    texts = []
    for seed in (1, 2):
        picture = noise(seed)
        expected = own(llava(), {"type": "image", "image": picture}, text("the cat"))
        assert answer(seeing, image(png(picture)), text("the cat")) == expected
        texts.append(expected)
    assert texts[0] != texts[1], "the image decides"
    assert answer(seeing, text("the cat")) == own(llava(), text("the cat"))


def test_a_log_of_prompts_has_the_beginning_of_an_image(seeing: Served) -> None:
    sent = body(text("What is this?"), image(png(noise(1))))
    logged = without_media(sent)
    [question, seen] = logged["messages"][0]["content"]
    assert question == text("What is this?")
    assert seen["image_url"]["url"].startswith("data:image/png;base64,")
    assert len(str(logged)) < 400
    assert sent == body(text("What is this?"), image(png(noise(1)))), "what is decoded stays whole"


def test_two_images_and_several_samples(seeing: Served) -> None:
    pictures = [noise(3), noise(4)]
    parts = [{"type": "image", "image": picture} for picture in pictures]
    expected = own(llava(), parts[0], text("and"), parts[1])
    asked = [image(png(picture)) for picture in pictures]
    reply = seeing.post("/v1/chat/completions", body(asked[0], text("and"), asked[1], n=2)).json()
    assert [choice["message"]["content"] for choice in reply["choices"]] == [expected] * 2
    assert reply["usage"]["prompt_tokens"] > 8, "the patches count"


def test_openais_client_and_responses(seeing: Served) -> None:
    picture = noise(5)
    expected = own(llava(), {"type": "image", "image": picture}, text("stop"))
    with seeing.openai() as client:
        stream = client.chat.completions.create(**body(image(png(picture)), text("stop")), stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream if part.choices) == expected
    content = [
        {"type": "input_image", "image_url": data_url(png(picture)), "detail": "auto"},
        {"type": "input_text", "text": "stop"},
    ]
    reply = seeing.openai().responses.create(
        model="demo",
        input=[{"role": "user", "content": content}],  # type: ignore[list-item, misc]
        max_output_tokens=NUM_NEW,
        temperature=0,
    )
    assert reply.output_text == expected


def test_a_recording_is_answered_as_by_generate(hearing: Served) -> None:
    texts = []
    for seed in (1, 2):
        samples = hum(seed)
        expected = own(qwen2_audio(), {"type": "audio", "audio": samples}, text("the cat"))
        data = base64.b64encode(wav(samples)).decode()
        part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        assert answer(hearing, part, text("the cat")) == expected
        texts.append(expected)
    assert texts[0] != texts[1], "the recording decides"


def bomb() -> bytes:
    """A small file of many pixels."""
    return png(Image.new("1", (9_300, 9_300)))


def audio(content: bytes, format_: str = "wav") -> dict[str, Any]:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(content).decode(), "format": format_},
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a URL": ({"type": "image_url", "image_url": {"url": "http://{host}/x.png"}}, "fetches no images"),
    "a path": ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, "fetches no images"),
    "transformers' form": ({"type": "image", "url": "/etc/passwd"}, "each part must be"),
    "a video": ({"type": "video_url", "video_url": {"url": "x"}}, "each part must be"),
    "no base64": ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "must be in base64"),
    "wrong base64": ({"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}, "isn't valid base64"),
    "no image": (image(b"no image"), "can't be read as PNG"),
    "a cut image": (image(png(noise(1, 200, 200))[:2000]), "can't be read as PNG.*truncated"),
    "another kind": (image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "can't be read as PNG.*it is none"),
    "many pixels": (image(bomb()), "9300 x 9300 pixels, and those of a conversation may have 80 million"),
    "another sound": (audio(b"ID3", "mp3"), '"format": "wav"'),
    "audio for eyes": (audio(wav(hum(1))), "LlavaProcessor takes no audio"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_be_read_is_refused_in_a_line_and_the_others_go_on(seeing: Served, name: str) -> None:
    part, reason = REFUSED[name]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        if name == "a URL":
            port = listener.getsockname()[1]
            part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/x.png"}}
        whole = dict[str, str]()
        other = threading.Thread(target=lambda: whole.update(text=answer(seeing, text("the mat"))))
        other.start()
        reply = seeing.post("/v1/chat/completions", body(part, text("the cat")))
        other.join(60)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"].startswith("messages")
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400
    assert re.search(reason, error["message"]), error["message"]
    assert whole["text"] == own(llava(), text("the mat"))


def test_pixels_are_counted_over_all_images_of_a_request(seeing: Served) -> None:
    half = image(png(Image.new("1", (8_000, 8_000))))
    reply = seeing.post("/v1/chat/completions", body(half, half))
    assert reply.status_code == 400
    assert "8000 x 8000 pixels" in reply.json()["error"]["message"]


def test_a_placeholder_in_the_text_is_no_image(seeing: Served) -> None:
    reply = seeing.post("/v1/chat/completions", body(image(png(noise(1))), text("<image> the cat")))
    assert reply.status_code == 400
    assert "\n" not in reply.json()["error"]["message"]


def test_options_of_a_template_never_reach_the_processor(seeing: Served) -> None:
    picture = noise(6)
    expected = own(llava(), {"type": "image", "image": picture}, text("the cat"))
    options = {"images": "http://127.0.0.1:1/x.png", "size": 3, "return_tensors_": "np"}
    asked = body(image(png(picture)), text("the cat"), chat_template_kwargs=options, reasoning_effort="low")
    reply = seeing.post("/v1/chat/completions", asked)
    assert reply.json()["choices"][0]["message"]["content"] == expected, reply.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wav(hum(1))[:44], "is empty"),
        (wav(hum(1))[:30], "isn't a WAV file"),
        (b"RIFF", "isn't a WAV file"),
        (wav(hum(1, 0.1), rate=1), "1 samples per second"),
        (wav(np.zeros(4_000 * 3_601), rate=4_000)[:1000], "longer than 60 minutes"),
    ],
)
def test_recordings_that_cant_be_read(hearing: Served, content: bytes, reason: str) -> None:
    reply = hearing.post("/v1/chat/completions", body(audio(content), text("the cat")))
    assert reply.status_code == 400, reply.text
    assert reason in reply.json()["error"]["message"]


def test_images_beyond_the_memory_for_them_wait_for_others(seeing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = seeing.server.admission
    assert admission.num_input_bytes == 0, "all that was taken is given back"
    monkeypatch.setattr("specdec.apps.serving.admission._MOST_INPUT_BYTES", 1)
    assert answer(seeing, image(png(noise(7))), text("the cat")), "a request alone always has room"
    admission.num_input_bytes = 1  # as of a request that decodes
    try:
        reply = seeing.post("/v1/chat/completions", body(image(png(noise(7)))))
    finally:
        admission.num_input_bytes -= 1
    assert (reply.status_code, admission.num_input_bytes, admission.num_texts) == (429, 0, 0)
    assert reply.headers["retry-after"]


def test_a_model_of_text_says_so(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="reads text alone"):
        served.openai().chat.completions.create(**body(image(png(noise(1))), text("the cat")))
