"""The names of the last version that are gone, each with what is in its place: errors of plug-ins that use one say so.

A key is a module, an attribute of a class, or, with brackets, a method that takes other arguments now.
"""

import re

RENAMED = {
    "Generator.driver": "generator.open_target()",
    "Target.prefill": "target.read_all(row, tokens), with row = target.open(capacity)",
    "Target.lay_out": "target.compile({row: tree})",
    "Target.lengths": "row.length, of each row that target.open gave",
    "Target.open()": "row = target.open(capacity), which is empty, and then target.read_all(row, tokens)",
    "Target.keep()": "target.keep(planned, {row: path})",
    "list.layout": "target.forward(target.compile({row: tree})), in place of a list of trees",
    "specdec.attention": "specdec.masks.exact.kernel, specdec.masks.split.kernel and specdec.backends.grouped",
    "specdec.builtins": "specdec.plugins.builtins",
    "specdec.driver": "specdec.target",
    "specdec.hookspecs": "specdec.plugins.hookspecs; hookimpl is specdec.hookimpl",
    "specdec.intake": "specdec.requests.builder",
    "specdec.loop": "specdec.decoding.scheduler",
    "specdec.prompts": "specdec.requests.prompts",
    "specdec.randomness": "specdec.sampling.randomness",
    "specdec.result": "specdec.decoding.result",
    "specdec.sequence": "specdec.decoding.sequence",
    "specdec.stats": "specdec.decoding.stats",
    "specdec.text": "specdec.decoding.detokenizer",
}


def hint(error: BaseException) -> str:
    """Return what is in place of the name that an error is about, as the end of a message; "" for any other."""
    name = ""
    if isinstance(error, ImportError):
        name = error.name or ""
    elif isinstance(error, AttributeError):
        name = f"{type(error.obj).__name__}.{error.name}"
    elif isinstance(error, TypeError) and (called := re.match(r"\w+\.\w+\(\)", str(error))):
        name = called[0]
    return f"; {name} is now {RENAMED[name]}" if name in RENAMED else ""
