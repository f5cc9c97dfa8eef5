"""The built-in model's corpus: what it is made of and how a run rebuilds it.

Four categories, one document each per unit of text:

- ``code``: functions and classes of the Python standard library (PSF licence), read from the running interpreter,
  never copied into this repository;
- ``documentation`` and ``dialogue``: written for this project, in ``corpus/*.txt``;
- ``arithmetic``: worked problems, generated below from a fixed seed.
"""

import ast
import importlib.util
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = [
    "textwrap",
    "heapq",
    "bisect",
    "statistics",
    "functools",
    "collections",
    "fractions",
    "string",
    "shlex",
    "csv",
    "calendar",
    "difflib",
    "pprint",
    "json.decoder",
    "json.encoder",
    "json.scanner",
    "random",
    "copy",
    "glob",
    "fnmatch",
    "shutil",
    "tempfile",
    "zipfile",
    "tarfile",
    "gzip",
    "base64",
    "configparser",
    "argparse",
    "getopt",
    "optparse",
    "logging",
    "queue",
    "sched",
    "threading",
    "contextlib",
    "dataclasses",
    "enum",
    "datetime",
    "colorsys",
    "hmac",
    "secrets",
    "uuid",
    "ipaddress",
    "urllib.parse",
    "http.cookies",
    "html.parser",
    "email.header",
    "mimetypes",
    "netrc",
    "operator",
    "reprlib",
    "types",
    "weakref",
    "abc",
    "numbers",
    "decimal",
    "_pydecimal",
    "locale",
    "gettext",
    "cmd",
    "code",
    "codeop",
    "timeit",
    "trace",
    "traceback",
    "linecache",
    "tokenize",
    "inspect",
    "dis",
    "pickle",
    "shelve",
    "plistlib",
    "socketserver",
    "selectors",
    "wave",
    "chunk",
    "sndhdr",
    "filecmp",
    "fileinput",
    "stat",
    "posixpath",
    "ntpath",
    "pathlib",
    "graphlib",
    "bdb",
    "doctest",
    "unittest.case",
    "unittest.mock",
    "ast",
    "keyword",
]

CODE_CHARACTERS = (1300, 2400)
NUM_CODE_DOCUMENTS = 64
MAX_PER_MODULE = 2


@dataclass(frozen=True)
class Document:
    category: str
    title: str
    text: str
    turns: tuple[tuple[str, str], ...] = ()  # (role, content) of a dialogue, else empty


def load(folder: Path) -> list[Document]:
    """All documents, in a fixed order."""
    dialogues = [
        Document("dialogue", title, "", tuple(_turns(text))) for title, text in _sections(folder / "dialogues.txt")
    ]
    pages = [Document("documentation", title, text) for title, text in _sections(folder / "documentation.txt")]
    return [*_standard_library(), *pages, *dialogues, *_arithmetic(num_documents=28, seed=20)]


def _sections(path: Path) -> Iterator[tuple[str, str]]:
    for section in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, _, text = section.partition("\n")
        yield title.strip(), text.strip() + "\n"


def _turns(text: str) -> Iterator[tuple[str, str]]:
    role, lines = "", list[str]()
    for line in [*text.splitlines(), "user: "]:
        head, colon, rest = line.partition(": ")
        if colon and head in {"user", "assistant"}:
            if lines:
                yield role, "\n".join(lines).strip()
            role, lines = head, [rest]
        else:
            lines.append(line)


def _standard_library() -> list[Document]:
    """Functions and classes of a length that fits one training window, few from any one module."""
    found: list[Document] = []
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        source = Path(spec.origin).read_text(encoding="utf-8")
        kept = 0
        for node in ast.parse(source).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            text = ast.get_source_segment(source, node) or ""
            if CODE_CHARACTERS[0] <= len(text) <= CODE_CHARACTERS[1] and kept < MAX_PER_MODULE and _is_varied(text):
                found.append(Document("code", f"{module}.{node.name}", f"# {module}\n{text}\n"))
                kept += 1
    return found[:NUM_CODE_DOCUMENTS]


def _is_varied(text: str) -> bool:
    """Tables and runs of like lines teach a model to loop; ordinary code has few repeated word 4-grams."""
    words = text.split()
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(set(grams)) >= 0.9 * len(grams)


def _arithmetic(num_documents: int, seed: int) -> list[Document]:
    rng = random.Random(seed)
    documents = []
    for number in range(1, num_documents + 1):
        problems = rng.sample(
            [_product, _division, _percentage, _journey, _rectangle, _sequence, _change, _mixture, _digits], k=8
        )
        body = "\n\n".join(f"{index}. {problem(rng)}" for index, problem in enumerate(problems, 1))
        documents.append(Document("arithmetic", f"sheet {number}", f"Worked arithmetic, sheet {number}\n\n{body}\n"))
    return documents


def _product(rng: random.Random) -> str:
    a, b = rng.randint(23, 98), rng.randint(112, 987)
    tens, units = divmod(a, 10)
    return (
        f"Multiply {b} by {a}. Split {a} into {tens * 10} and {units}: {b} x {tens * 10} = {b * tens * 10} and "
        f"{b} x {units} = {b * units}. Together {b * tens * 10} + {b * units} = {a * b}, so the product is {a * b}."
    )


def _division(rng: random.Random) -> str:
    divisor, quotient, remainder = rng.randint(6, 19), rng.randint(41, 399), rng.randint(1, 5)
    total = divisor * quotient + remainder
    first = quotient // 10 * 10
    return (
        f"Divide {total} by {divisor}. {divisor} goes {first} times into it ({divisor * first}), which leaves "
        f"{total - divisor * first}; there it goes {quotient - first} more times ({divisor * (quotient - first)}), "
        f"leaving {remainder}. Answer: {quotient} remainder {remainder}."
    )


def _percentage(rng: random.Random) -> str:
    what = rng.choice(["a coat", "a bicycle", "a desk lamp", "a tent", "a camera", "a violin", "a ladder"])
    price, rate = rng.randint(4, 60) * 20, rng.choice([5, 10, 15, 20, 25, 35, 40])
    cut = price * rate // 100
    return (
        f"What does {what} marked {price} euros cost after a reduction of {rate} per cent? One per cent is "
        f"{price / 100:.2f} euros, hence {rate} per cent are {cut} euros. {price} - {cut} = {price - cut}: "
        f"the buyer pays {price - cut} euros."
    )


def _journey(rng: random.Random) -> str:
    who = rng.choice(["A train", "A ferry", "The night bus", "A cyclist", "A courier", "The tram to the harbour"])
    speed, minutes = rng.randint(3, 30) * 6, rng.randint(2, 15) * 10
    return (
        f"{who} moves at {speed} kilometres an hour for {minutes} minutes. In one minute it covers {speed}/60 = "
        f"{speed / 60:g} kilometres, in {minutes} minutes {minutes} x {speed / 60:g} = {speed * minutes / 60:g}. "
        f"The distance is {speed * minutes / 60:g} kilometres."
    )


def _rectangle(rng: random.Random) -> str:
    where = rng.choice(["A garden", "The school hall", "A wooden raft", "A football pitch", "The kitchen floor"])
    a, b = rng.randint(4, 48), rng.randint(5, 75)
    return (
        f"{where} is {a} metres wide and {b} metres long. Its area is {a} x {b} = {a * b} square metres; walking "
        f"round it means 2 x ({a} + {b}) = 2 x {a + b} = {2 * (a + b)} metres."
    )


def _sequence(rng: random.Random) -> str:
    start, step = rng.randint(2, 40), rng.randint(3, 17)
    terms = [start + step * i for i in range(5)]
    return (
        f"Continue {', '.join(map(str, terms[:4]))}. Each term is {step} larger than the one before, so the fifth is "
        f"{terms[3]} + {step} = {terms[4]}, and the twentieth is {start} + 19 x {step} = {start + 19 * step}."
    )


def _change(rng: random.Random) -> str:
    name = rng.choice(["Amira", "Jonas", "Wei", "Lucia", "Tomasz", "Nadia", "Oskar", "Priya"])
    count, cents = rng.randint(3, 9), rng.randint(21, 95)
    note = (count * cents // 500 + 1) * 5
    return (
        f"{name} buys {count} notebooks at {cents} cents each and hands over {note} euros. {count} x {cents} = "
        f"{count * cents} cents, that is {count * cents / 100:.2f} euros; {note}.00 - {count * cents / 100:.2f} = "
        f"{note - count * cents / 100:.2f}. {name} gets back {note - count * cents / 100:.2f} euros."
    )


def _mixture(rng: random.Random) -> str:
    a, b = rng.randint(2, 9), rng.randint(3, 11)
    share = rng.randint(12, 60)
    return (
        f"Paint is mixed from blue and white in the ratio {a} to {b}. For {share * (a + b)} millilitres take "
        f"{a} + {b} = {a + b} parts of {share * (a + b)}/{a + b} = {share} millilitres: {a} x {share} = {a * share} "
        f"of blue, {b} x {share} = {b * share} of white. Check: {a * share} + {b * share} = {share * (a + b)}."
    )


def _digits(rng: random.Random) -> str:
    number = rng.randint(10_000, 999_999)
    digits = [int(d) for d in str(number)]
    total = sum(digits)
    verdict = "is" if total % 3 == 0 else "is not"
    return (
        f"Can {number} be divided by 3? Add its digits: {' + '.join(map(str, digits))} = {total}. "
        f"{total} = 3 x {total // 3} + {total % 3}, so {number} {verdict} a multiple of 3."
    )
