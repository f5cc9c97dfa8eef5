"""Stand-ins for the models and files that the pages on inputs and on models name."""

from pathlib import Path

from tests.support.media_models import hum, llava, noise, png, qwen2_audio, t5, wav
from tests.support.whisper import whisper

MODELS = {
    "llava-hf/llava-interleave-qwen-0.5b-hf": llava,
    "Qwen/Qwen2-Audio-7B-Instruct": qwen2_audio,
    "google-t5/t5-small": t5,
    "openai/whisper-tiny": whisper,
}


def with_stand_ins(text: str, folder: Path) -> str:
    """The text with folders of small random models for hub names; the files that it names are in the folder too."""
    for name, make in MODELS.items():
        place = folder / name.rpartition("/")[2]
        if name in text and not place.is_dir():
            model, processor = make()
            model.save_pretrained(place)
            processor.save_pretrained(place)
        text = text.replace(name, str(place))
    for name, content in {"receipt.png": png(noise(1)), "question.wav": wav(hum(1))}.items():
        if name in text:
            (folder / name).write_bytes(content)
    return text
