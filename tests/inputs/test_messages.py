"""Chat messages with images and audio, text-only chats of such models, and templates that read parts alone."""

import copy
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from specdec import Generator, RequestError
from specdec.inputs.chat_templates import template_variables
from specdec.inputs.pictures import Pictures
from specdec.inputs.wav import samples_of
from specdec.requests.turn_ends import ends_of_turn
from tests.support.byte_tokenizer import END, trained
from tests.support.media_models import AUDIO, IMAGE, PARTS_ALONE, data_url, hum, llava, noise, own_answer, png, wav

NUM_NEW = 10
_AS_PARTS = "([{'type': 'text', 'text': m.content}] if m.content is string else m.content)"
READS_BOTH = PARTS_ALONE.replace("{% for p in m.content %}", f"{{% for p in {_AS_PARTS} %}}")


def texts(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def templated(template: str) -> Any:
    processor = copy.deepcopy(llava()[1])
    processor.chat_template = processor.tokenizer.chat_template = template
    return processor


@pytest.mark.parametrize("template", [PARTS_ALONE, READS_BOTH])
def test_text_alone_is_read_by_every_template(template: str) -> None:
    model, processor = llava()[0], templated(template)
    whole = [{"role": "system", "content": "naïve"}, {"role": "user", "content": "the cat"}]
    parts = [{**message, "content": texts(message["content"])} for message in whole]
    expected = own_answer(model, processor, parts, NUM_NEW)
    with Generator(model, processor) as generator:
        assert generator.generate(whole, max_new_tokens=NUM_NEW).token_ids == tuple(expected)
        picture = [{"type": "image", "image": noise(1)}, *texts("the cat")]
        mixed = [whole[0], {"role": "user", "content": picture}]
        expected = own_answer(model, processor, [parts[0], {"role": "user", "content": picture}], NUM_NEW)
        assert generator.generate(mixed, max_new_tokens=NUM_NEW).token_ids == tuple(expected)


def test_a_processors_template_ends_turns_and_is_the_tokenizers() -> None:
    model, processor = llava()
    assert processor.tokenizer.chat_template is None
    with Generator(model, processor) as generator:
        assert generator.tokenizer.chat_template == PARTS_ALONE
        assert ends_of_turn(generator.tokenizer, {}) == (trained().convert_tokens_to_ids(END),)
    assert processor.tokenizer.chat_template is None, "the caller's object stays as it is"


def test_a_turn_ends_as_a_template_of_parts_writes_it() -> None:
    words = templated(PARTS_ALONE.replace(END, AUDIO)).tokenizer
    assert ends_of_turn(words, {}) == tuple(map(words.convert_tokens_to_ids, (END, AUDIO)))


def test_a_folder_is_loaded_with_its_processor(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    model, processor = llava()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": data_url(png(noise(2)))}, *texts("a")]}]
    plain = [{"role": "user", "content": [{"type": "image", "image": noise(2)}, *texts("a")]}]
    with Generator(str(tmp_path)) as generator:
        assert type(generator.model) is type(model)
        result = generator.generate(messages, max_new_tokens=NUM_NEW)
        assert result.token_ids == tuple(own_answer(model, processor, plain, NUM_NEW))
        declined = [note for note in result.notes if "openvino" in note]
        assert all("reads text only" in note for note in declined), result.notes
    (tmp_path / "processor_config.json").write_text("{")
    with pytest.warns(UserWarning, match="takes text alone: its processor can't be loaded"):
        generator = Generator(str(tmp_path), backend="hf")
    with generator, pytest.raises(RequestError, match="the model came without its processor"):
        generator.generate(messages, max_new_tokens=NUM_NEW)


def test_images_are_upright_and_in_rgb_as_transformers_reads_files(tmp_path: Path) -> None:
    model, processor = llava()
    turned = noise(3, 40, 16)
    exif = turned.getexif()
    exif[274] = 6  # the picture's own orientation: to be turned by 90 degrees
    path = tmp_path / "turned.png"
    turned.convert("RGBA").save(path, exif=exif)
    assert Pictures().read(path.read_bytes()).size == (16, 40)
    by_path: dict[str, Any] = {"type": "image", "path": str(path)}
    held: dict[str, Any] = {"type": "image_url", "image_url": {"url": data_url(path.read_bytes())}}
    first, second = ([{"role": "user", "content": [part, *texts("a")]}] for part in (by_path, held))
    with Generator(model, processor) as generator:
        result = generator.generate(second, max_new_tokens=NUM_NEW)
    assert result.token_ids == tuple(own_answer(model, processor, first, NUM_NEW))


IMAGE_PART = {"type": "image", "image": noise(1)}


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([{"type": "image_url"}], "rejected the messages"),
        ([{"type": "image_url", "image_url": "data:image/png,x"}], "must be in base64"),
        ([{"type": "input_audio", "input_audio": {}}], "LlavaProcessor takes no audio"),
        ([{"type": "image", "image": "no_such.png"}], "rejected the messages"),
        ([IMAGE_PART, {"type": "text", "text": IMAGE}], "placeholder|rejected"),
        ([IMAGE_PART, {"type": "file", "file": {}}], "a part that is no text, image or recording: file"),
        ([IMAGE_PART, {"type": "text", "text": None}], "a part that is no text, image or recording: text"),
        ([IMAGE_PART, "the cat"], "a part that is no text, image or recording: str"),
        ([{"type": "video", "video": "cat.mp4"}], "LlavaProcessor takes no videos"),
    ],
)
def test_what_cant_be_read_is_refused(parts: list[Any], reason: str) -> None:
    with Generator(*llava()) as generator, pytest.raises(RequestError, match=reason) as caught:
        generator.generate([{"role": "user", "content": parts}], max_new_tokens=1)
    assert "\n" not in str(caught.value)


def test_messages_with_an_image_are_as_plain_as_those_of_text() -> None:
    model, processor = copy.deepcopy(llava())
    processor.chat_template = PARTS_ALONE.replace(
        "{% for p in",
        "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endif %}{% for p in",
    )
    asked = [{"role": "user", "content": [IMAGE_PART, *texts("the cat")]}]
    last = {"role": "user", "content": texts("the mat")}
    expected = own_answer(model, processor, [*asked, {"role": "assistant", "content": texts("no")}, last], 4)
    refused = {"role": "assistant", "content": None, "refusal": "no", "tool_calls": None}  # as OpenAI's client has it
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    with Generator(model, processor) as generator:
        for given in (refused, part):
            assert generator.generate([*asked, given, last], max_new_tokens=4).token_ids == tuple(expected)
        with pytest.raises(RequestError, match="chat message 0 has no 'role'"):
            generator.generate([{"content": [IMAGE_PART]}], max_new_tokens=4)


def test_a_model_without_its_processor_says_what_to_give() -> None:
    model, processor = llava()
    remedy = "came without its processor: save it into the model's folder, or"
    with Generator(model, processor.tokenizer) as generator, pytest.raises(RequestError, match=remedy):
        generator.generate([{"role": "user", "content": [IMAGE_PART]}], max_new_tokens=1)


def test_the_options_that_a_template_reads() -> None:
    read = template_variables(
        "{% set a = 1 %}{% for m in messages %}{% generation %}{{ m }}{{ b }}{% endgeneration %}"
        "{% if m.c %}{% continue %}{% endif %}{% endfor %}{{ a }}{{ 'd' }}"
    )
    assert read == {"messages", "b"}
    assert template_variables(None) == template_variables({"other": "{{ x }}"}) == frozenset()
    assert template_variables({"default": "{{ x }}"}) == {"x"}


@pytest.mark.parametrize("rate", [16_000, 8_000, 48_000])
def test_recordings_have_the_models_rate(rate: int) -> None:
    found = samples_of(wav(hum(1, rate=rate), rate), 16_000)
    assert len(found) == 16_000
    assert abs(found).max() == pytest.approx(0.8, abs=0.01)
    if rate == 16_000:
        assert found.tolist() == hum(1).tolist()


def test_a_cut_recording_is_read_as_far_as_it_goes() -> None:
    assert samples_of(wav(hum(1))[:1001], 16_000).tolist() == hum(1)[: (1000 - 44) // 2].tolist()


def test_a_recording_whose_chunks_dont_fit_is_refused() -> None:
    content = bytearray(wav(hum(1)))
    content[16] = 200  # bytes of the format, which reach beyond the file's end as it says it
    content[4:8] = (40).to_bytes(4, "little")
    with pytest.raises(RequestError, match="isn't a WAV file that can be read: RuntimeError"):
        samples_of(bytes(content), 16_000)


def test_an_images_size_is_checked_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    content = png(Image.new("1", (9_300, 9_300)))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("it was decoded"))
    with pytest.raises(RequestError, match="9300 x 9300 pixels"):
        Pictures().read(content)
