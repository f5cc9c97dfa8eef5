"""The core knows no head: with the folder of heads removed, it is imported and decodes."""

import shutil
import subprocess
import sys
from pathlib import Path

import specdec

CODE = """
import sys, warnings
warnings.simplefilter("ignore")
from specdec import Generator, demo
model, tokenizer = demo.load()
generator = Generator(model, tokenizer)
assert generator.generate("def f(x):", max_new_tokens=8).token_ids
assert not [name for name in sys.modules if name.startswith("specdec.heads")]
print(specdec.__file__ if (specdec := sys.modules["specdec"]) else "")
"""


def test_the_core_decodes_without_the_folder_of_heads(tmp_path: Path) -> None:
    source, copy = Path(specdec.__file__).parent, tmp_path / "specdec"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("heads", "training", "__pycache__"))
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == copy / "__init__.py"
