"""Plug-ins: discovery through the entry-point group ``specdec``, checks at registration, and ``"name:key=value"``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pkgutil import resolve_name
from typing import Any, Self

import pluggy
import torch
from pydantic import BaseModel

import specdec.plugins.hookspecs
from specdec.backends.base import Backend, BackendOptions
from specdec.errors import PluginError, blaming, in_one_line, is_out_of_memory
from specdec.masks.base import MaskCompiler
from specdec.models.weights.base import Kernel
from specdec.plugins.contracts import CONTRACTS, fault_of
from specdec.plugins.names import BUILT_INS, NAME, PROJECT, merged_parts, registered, unknown
from specdec.plugins.options import configured, name_and_options
from specdec.strategies.auto.merged import MergedProposer
from specdec.strategies.auto.proposer import AutoProposer
from specdec.strategies.base import LocalSource, Proposer


@dataclass(frozen=True, slots=True)
class Plugin:
    """One implementation: its kind and name, its class or where that is imported from, and its distribution."""

    kind: str
    name: str
    offered: type | str
    distribution: str

    @property
    def cls(self) -> type:
        """The class, which is imported at first use if its place was offered.

        Raises:
            PluginError: if a class that is imported now doesn't implement its contract.
        """
        if isinstance(self.offered, type):
            return self.offered
        found = resolve_name(self.offered)
        if fault := fault_of(found, self.kind):
            raise PluginError(f"plug-in {self.full_name}: {fault}")
        assert isinstance(found, type), "checked"
        return found

    @property
    def full_name(self) -> str:
        """``distribution/name``, which is unique."""
        return f"{self.distribution}/{self.name}"


@dataclass(frozen=True, slots=True)
class BrokenDistribution:
    """A third-party distribution that can't be used, and why."""

    distribution: str
    reason: str  # one line

    @classmethod
    def by(cls, error: Exception, distribution: str) -> Self:
        """Return the record of a distribution that failed with an error."""
        return cls(distribution, str(error) if isinstance(error, PluginError) else in_one_line(error))


class Registry:
    """The installed implementations; made by ``load_plugins``."""

    def __init__(self, plugins: Iterable[Plugin] = ()) -> None:
        self.broken: list[BrokenDistribution] = []
        self._plugins = [*plugins]
        self._managers: list[pluggy.PluginManager] = []
        self._unasked: list[tuple[pluggy.PluginManager, str]] = []  # for backends, whose libraries take seconds

    @property
    def plugins(self) -> list[Plugin]:
        """All implementations, distribution by distribution, in the order of registration."""
        self._ask_for_backends()
        distributions = list(dict.fromkeys(plugin.distribution for plugin in self._plugins))
        return sorted(self._plugins, key=lambda plugin: distributions.index(plugin.distribution))

    def register(self, module: object, distribution: str) -> None:
        """Register a module's hook implementations; the hook for backends is called only when one is needed.

        Raises:
            PluginError: for an unknown hook, a wrong signature, a class that doesn't implement its contract, or a name
                that the distribution offers twice.
        """
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(specdec.plugins.hookspecs)
        try:
            manager.register(module, name=distribution)
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            fault = "; ".join(str(error).splitlines())
            raise PluginError(f"plug-in {distribution} refused: {fault}") from None
        if not manager.get_hookcallers(module):
            raise PluginError(f"plug-in {distribution} offers nothing: mark its functions with @specdec.hookimpl")
        self._plugins += [
            plugin for kind in CONTRACTS if kind != "backends" for plugin in self._offered(manager, kind, distribution)
        ]
        self._managers.append(manager)
        self._unasked.append((manager, distribution))

    def _ask_for_backends(self) -> None:
        while self._unasked:
            manager, distribution = self._unasked.pop(0)
            try:
                self._plugins += self._offered(manager, "backends", distribution)
            except Exception as error:
                if distribution == PROJECT or is_out_of_memory(error):
                    raise
                self.broken.append(BrokenDistribution.by(error, distribution))

    def _offered(self, manager: pluggy.PluginManager, kind: str, distribution: str) -> list[Plugin]:
        return [
            self._checked(Plugin(kind, name, each, distribution))
            for offered in getattr(manager.hook, f"specdec_{kind}")()
            for name, each in _items(offered, kind, distribution)
        ]

    def _checked(self, plugin: Plugin) -> Plugin:
        where = f"plug-in {plugin.distribution}, hook specdec_{plugin.kind}, name {plugin.name!r}"
        if not isinstance(plugin.name, str) or not NAME.fullmatch(plugin.name):
            raise PluginError(f"{where}: a name is a string of letters, digits, '_', '-' and '.'")
        if not isinstance(plugin.offered, str) and (fault := fault_of(plugin.offered, plugin.kind)):
            raise PluginError(f"{where}: {fault}")
        if plugin.full_name in [other.full_name for other in self._plugins if other.kind == plugin.kind]:
            raise PluginError(f"{where}: another entry point of {plugin.distribution} offers it: rename one")
        return plugin

    def of_kind(self, kind: str) -> list[Plugin]:
        """All implementations of one contract, in the order of registration."""
        if kind == "backends":
            self._ask_for_backends()
        return [plugin for plugin in self._plugins if plugin.kind == kind]

    def name_of(self, plugin: Plugin) -> str:
        """Return the shortest unique name: ``distribution/name`` if the name alone is a built-in's or ambiguous."""
        rivals = [other for other in self.of_kind(plugin.kind) if other.name == plugin.name]
        is_found = plugin.distribution == PROJECT or rivals == [plugin]
        return plugin.name if is_found else plugin.full_name

    def find(self, kind: str, name: str) -> type:
        """Return the class of a name, or of ``distribution/name``.

        Raises:
            PluginError: if there is none, with the nearest names; if there are several, with their full names.
        """
        plugins = self.of_kind(kind)
        names = {self.name_of(plugin): plugin for plugin in plugins}
        found = names.get(name) or next((plugin for plugin in plugins if plugin.full_name == name), None)
        if found is not None:
            return found.cls
        if several := [plugin.full_name for plugin in plugins if plugin.name == name]:
            raise PluginError(f"{kind[:-1]} {name!r} is ambiguous: use {' or '.join(several)}")
        # Backends aren't searched, as their libraries take seconds to import.
        kinds = [plugin.kind for plugin in self._plugins if plugin.name == name]
        broken = [fault.distribution for fault in self.broken]
        raise PluginError(unknown(kind, name, names, kinds, broken, self.faults()))

    def faults(self) -> str:
        """Return a further line of an error message for each broken distribution, which may be the reason."""
        return "".join(f"\n{fault.distribution} is installed but broken: {fault.reason}" for fault in self.broken)

    def make(self, kind: str, given: object) -> Any:
        """Return an implementation from an object of the contract or a string ``"name:key=value,…"``.

        Proposers joined by ``+`` are merged into one draft.

        Raises:
            PluginError: for an unknown name, an option that fails the plug-in's own validation, or another type.
        """
        contract = CONTRACTS[kind]
        if isinstance(given, contract):
            return given
        if isinstance(given, type) and issubclass(given, contract):
            name = given.__name__
            raise PluginError(f"{kind[:-1]}={name} is a class, not an object; call it: {name}()")
        if not isinstance(given, str):
            example = self.of_kind(kind)[0].name
            raise PluginError(f"{kind[:-1]}={given!r}: give a {contract.__name__} or a string such as {example!r}")
        names = {plugin.name for plugin in self.of_kind("proposers")} if kind == "proposers" else set()
        parts = merged_parts(given, names) if names else [given]
        if len(parts) > 1:
            return MergedProposer([source for part in parts for source in _sources(self.make(kind, part))])
        cls = self.find(kind, name_and_options(given)[0])
        assert issubclass(cls, BaseModel), "contracts that take options are pydantic models"
        return configured(cls, kind, given)

    def local_sources(self, model: object, engine: str) -> list[LocalSource]:
        """Return what was prepared on this machine for a model, run by the backend ``engine``; may raise anything."""
        hooks = [manager.hook.specdec_local_sources for manager in self._managers]
        answers = [each for hook in hooks for each in hook(model=model, engine=engine)]
        return [source for sources in answers for source in sources]

    def compilers(self, device: torch.device, bit_exact: bool, least: int = 0) -> list[MaskCompiler]:
        """Return the mask compilers that numerics may choose on a device, the preferred one first.

        Args:
            bit_exact: those that are, or those that aren't.
            least: the smallest preference.

        Raises:
            PluginError: if a compiler's ``choices`` fails.
        """
        found = list[tuple[int, MaskCompiler]]()
        for plugin in self.of_kind("masks"):
            assert issubclass(plugin.cls, MaskCompiler), "checked when it registered"
            if plugin.cls.bit_exact == bit_exact:
                with blaming(f"mask {plugin.full_name}"):
                    found += plugin.cls.choices(device).items()
        found = [choice for choice in found if choice[0] >= least]
        return [compiler for _, compiler in sorted(found, key=lambda choice: -choice[0])]

    def kernels(self) -> dict[str, Kernel]:
        """The installed kernels by name."""
        return {self.name_of(each): each.cls() for each in self.of_kind("kernels")}

    def backend(self, given: str) -> tuple[type[Backend], BackendOptions]:
        """Return a backend's class and its options from a string ``"name:key=value,…"``.

        Raises:
            PluginError: for an unknown name, or an option that fails the plug-in's own validation.
        """
        cls = self.find("backends", name_and_options(given)[0])
        assert issubclass(cls, Backend), "checked when it registered"
        return cls, configured(cls.Options, "backends", given)


def _sources(proposer: Proposer) -> Sequence[Proposer]:
    """Return the parts of a proposer that is itself a merge, or the proposer alone."""
    merged = proposer.merged() if isinstance(proposer, AutoProposer) else proposer
    return merged.proposers if isinstance(merged, MergedProposer) else [merged]


def load_plugins() -> Registry:
    """Return the built-ins and all plug-ins installed under the entry-point group ``specdec``.

    A third-party distribution that fails is listed under ``broken`` and doesn't stop the others.
    """
    built_in = [(kind, *each) for kind, places in BUILT_INS.items() for each in places.items()]
    registry = Registry(Plugin(kind, name, place, PROJECT) for kind, name, place in built_in)
    for entry_point in registered():
        distribution = _distribution(entry_point)
        try:
            registry.register(entry_point.load(), distribution)
        except Exception as error:  # a third party's import must not stop the others
            if is_out_of_memory(error):
                raise
            registry.broken.append(BrokenDistribution.by(error, distribution))
    return registry


def _distribution(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else entry_point.value


def _items(offered: Any, kind: str, distribution: str) -> Iterator[tuple[str, type | str]]:
    if not isinstance(offered, Mapping):
        raise PluginError(
            f"plug-in {distribution}, hook specdec_{kind}: it returned {offered!r}, not a mapping of name to class"
        )
    yield from offered.items()
