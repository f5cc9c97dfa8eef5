"""Triton's kernels compiled for GPUs that aren't there: what their processors would be given."""

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Compiled:
    """A kernel for one GPU.

    Attributes:
        stack: bytes a thread spills to memory.
        shared: bytes of a program.
        instruction: of its products: "wgmma", "mma.sync" or "".
        loads_wide: whether memory is read 16 bytes at a time.
        ptx: the kernel's code.
    """

    stack: int
    shared: int
    instruction: str
    loads_wide: bool
    ptx: str


def compiled(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    capability: int,
    multiples_of_16: Collection[str] = (),
    **options: int,
) -> Compiled:
    """Compile a kernel for a capability, such as 90; pointers are multiples of 16 bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = [name for name in names if signature[name].startswith("*") or name in multiples_of_16]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        printed = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", printed)
    assert stack is not None, printed
    ptx = made.asm["ptx"]
    instruction = next((each for each in ("wgmma.mma", "mma.sync") if each in ptx), "")
    return Compiled(int(stack[1]), made.metadata.shared, instruction.removesuffix(".mma"), "v4.b32" in ptx, ptx)
