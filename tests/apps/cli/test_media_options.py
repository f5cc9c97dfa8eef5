"""Images and recordings on the command line: the answers of transformers' own ``generate``, and early refusals."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.media_models import hum, llava, noise, own_answer, png, qwen2_audio, wav

NUM_NEW = 8
FEW = ("--max-new-tokens", str(NUM_NEW))


@pytest.fixture(scope="module", name="folders")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models with their processors, as files."""
    made = {}
    for name, (model, processor) in {"llava": llava(), "qwen2_audio": qwen2_audio()}.items():
        made[name] = str(tmp_path_factory.mktemp(name))
        model.save_pretrained(made[name])
        processor.save_pretrained(made[name])
    return made


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> dict[str, str]:
    contents = {"a.png": png(noise(1)), "b.png": png(noise(2)), "c.wav": wav(hum(3)), "d.txt": b"text"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in contents}


def own(tools: tuple[Any, Any], *contents: Any) -> str:
    """What ``generate`` answers to the last of the messages, of which every second is an answer."""
    model, processor = tools
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": [*each]} for role, each in zip(roles, contents, strict=False)]
    ids = own_answer(model, processor, messages, NUM_NEW)
    return str(processor.tokenizer.decode(ids, skip_special_tokens=True))


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_generate_takes_images_and_a_recording(run: Any, folders: dict[str, str], files: dict[str, str]) -> None:
    code, out, err = run(
        "generate", "the cat", "--image", files["a.png"], "--image", files["b.png"], "--model", folders["llava"], *FEW
    )
    pictures = [{"type": "image", "image": noise(seed)} for seed in (1, 2)]
    assert (code, out) == (0, own(llava(), [*pictures, text("the cat")]) + "\n"), err
    code, out, err = run("generate", "the hat", "--audio", files["c.wav"], "--model", folders["qwen2_audio"], *FEW)
    sound = {"type": "audio", "audio": hum(3)}
    assert (code, out) == (0, own(qwen2_audio(), [sound, text("the hat")]) + "\n"), err


def test_a_chat_goes_on_about_its_image(
    run: Any, folders: dict[str, str], files: dict[str, str], tmp_path: Path
) -> None:
    saved = tmp_path / "talk.json"
    lines = f"the cat\n/image {files['b.png']}\nthe hat\n/save {saved}\n"
    code, out, err = run("chat", "--image", files["a.png"], "--model", folders["llava"], *FEW, stdin=lines)
    first, second = ([{"type": "image", "image": noise(seed)}] for seed in (1, 2))
    turns: list[Any] = [[*first, text("the cat")]]
    answers = [own(llava(), *turns)]
    turns += [[text(answers[0])], [*second, text("the hat")]]
    answers.append(own(llava(), *turns))
    assert code == 0, err
    assert out == "".join(f"{answer}\n" for answer in answers)
    code, out, err = run("chat", "--load", str(saved), "--model", folders["llava"], *FEW, stdin="the mat\n")
    turns += [[text(answers[1])], [text("the mat")]]
    assert (code, out) == (0, own(llava(), *turns) + "\n"), "the file has the images"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--image", "no_such.png"), "no_such.png can't be read: No such file"),
        (("--image", "https://host/x.png"), "give a file, since nothing is fetched"),
        (("--image", "d.txt"), "d.txt: an image can't be read as PNG, .*: it is none of these"),
        (("--audio", "a.png"), "a.png: the recording isn't a WAV file"),
        (("--image", "a.png", "--no-chat"), "leave out --no-chat"),
        (("--image", "a.png", "--model", "demo"), "LlamaForCausalLM reads text only: use a model that takes images"),
        (("--audio", "c.wav", "--model", "llava"), "LlavaProcessor takes no audio"),
    ],
)
def test_refusals(
    run: Any, folders: dict[str, str], files: dict[str, str], arguments: tuple[str, ...], reason: str
) -> None:
    given = [files.get(each, folders.get(each, each)) for each in arguments]
    code, out, err = run("generate", "the cat", *given)
    assert (code != 0, out) == (True, "")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    assert re.search(reason, lines[0]), lines


@pytest.mark.parametrize("given", [("--image", "a.png"), ()])
def test_a_chat_with_a_model_of_text_says_so_once(run: Any, files: dict[str, str], given: tuple[str, ...]) -> None:
    options = [files.get(each, each) for each in given]
    lines = "What is bread?\n/image\nWhat is bread?\n" if given else "What is bread?\n"
    code, out, err = run("chat", *options, "--model", "demo", *FEW, stdin=lines)
    assert code == 0
    assert out.count("\n") == 1, "the question without the image is answered"
    assert err.count("reads text only") == len(given) // 2
