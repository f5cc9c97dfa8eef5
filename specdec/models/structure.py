"""The structure of a model: all that its forward may depend on, except the numbers in its tensors.

It consists of each module's class and attributes, including the contents of containers and plain objects such as
configurations, and the functions of its modelling code. So any change shows in some fact: an adapter that is switched
or rescaled, a replaced layer, an edited setting, a patched function.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import torch
from torch.nn.modules import module as modules_of_torch

_SIMPLE = bool, int, float, complex, str, bytes, torch.device, torch.dtype, type(None)
_CODE = FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, partial
_UNPATCHED = "torch.", "builtins", "abc", "typing"
_OF_TORCH = set(vars(torch.nn.Module())) - {"training"}
_DEEPEST = 3  # nesting depth up to which containers are read
_CAPTURING = "transformers.utils.output_capturing"
_PRIVATE = "_specdec"  # prefix of specdec's own attributes
# Parameters, buffers and modules are read separately, and no forward reads generation settings.
_NAMED_APART = {"_parameters", "_buffers", "_modules", "generation_config"}


def facts_of(modules: Sequence[torch.nn.Module]) -> list[object]:
    """Return all that the modules' forward may depend on: their code, their attributes, and containers' contents."""
    seen: set[int] = set()
    attributes = [fact for module in modules for fact in (type(module), *_attributes(module, _DEEPEST, seen))]
    return [*attributes, *_code_of({type(module): None for module in modules})]


def _code_of(classes: Iterable[type]) -> Iterator[object]:
    """Yield the functions of classes and of their source files, which kernel libraries may replace."""
    bases = {base: None for cls in classes for base in cls.__mro__ if not base.__module__.startswith(_UNPATCHED)}
    files = {base.__module__: sys.modules.get(base.__module__) for base in bases}
    for owner in (*bases, *filter(None, files.values())):
        for name, value in vars(owner).items():
            if isinstance(value, _CODE) and not name.startswith("__"):
                yield name
                yield value


def _attributes(owner: object, depth: int, seen: set[int]) -> Iterator[object]:
    for name, value in vars(owner).items():
        if name in _OF_TORCH and not value:  # tables of hooks, which every module has a dozen of
            continue
        if name not in _NAMED_APART and not name.startswith(_PRIVATE):
            yield name
            yield from _facts(value, depth, seen)


def _facts(value: object, depth: int, seen: set[int]) -> Iterator[object]:
    """Yield a value and its contents, so that a modified container or object has other facts."""
    if isinstance(value, _SIMPLE):
        yield value
    elif isinstance(value, dict | list | tuple | set | frozenset):
        yield len(value)
        if depth:
            # A set's order differs between processes.
            for each in sorted(value, key=described) if isinstance(value, set | frozenset) else value:
                yield from _facts(each, depth - 1, seen)
                if isinstance(value, dict):
                    yield from _facts(value[each], depth - 1, seen)
    else:
        yield value
        is_plain = not isinstance(value, (torch.Tensor, torch.nn.Module, *_CODE))
        if depth and is_plain and hasattr(value, "__dict__") and id(value) not in seen:
            seen.add(id(value))  # thirty layers have one configuration
            yield from _attributes(value, depth - 1, seen)


def are_same(facts: Sequence[object], others: Sequence[object]) -> bool:
    """Return True if all numbers and texts are equal, and all other facts are identical objects."""
    return len(facts) == len(others) and all(
        one is other or (type(one) is type(other) and isinstance(one, _SIMPLE) and one == other)
        for one, other in zip(facts, others, strict=True)
    )


def described(fact: object) -> str:
    """Return a text for a fact that is the same in any process: a value, or an object's kind and name."""
    if isinstance(fact, _SIMPLE):
        return repr(fact)
    if isinstance(fact, torch.Tensor):
        return f"{fact.dtype} {tuple(fact.shape)} {fact.device}"
    name = getattr(fact, "__qualname__", "")
    kind = type(fact)
    return f"{getattr(fact, '__module__', '')}.{name}" if name else f"{kind.__module__}.{kind.__qualname__}"


def are_hooked(modules: Sequence[torch.nn.Module]) -> bool:
    """Return True if a call of any module runs a hook or a replaced forward."""
    is_global = bool(modules_of_torch._global_forward_hooks or modules_of_torch._global_forward_pre_hooks)
    return is_global or any(map(_is_hooked, modules))


def _is_hooked(module: torch.nn.Module) -> bool:
    # transformers' own hooks, left by a call with output_hidden_states, do nothing in other calls.
    hooks = (getattr(hook, "__module__", "") for hook in module._forward_hooks.values())
    return bool(
        not all(hook == _CAPTURING for hook in hooks)
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or module._compiled_call_impl is not None
    )
