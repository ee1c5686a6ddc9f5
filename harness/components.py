"""Finds a component by its short name or as "module:Class", checks its configuration, and builds it.

A component is a class whose keyword arguments are its configuration keys (see harness/interfaces.py). A configuration
names it as ``name``, or as ``{use: name, key: value, ...}``; `name` is one of `FAMILIES`, ``module:Class`` of an
importable module, or ``path/to/file.py:Class`` relative to the current directory.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from harness.errors import InputError
from harness.interfaces import CONTEXT
from harness.validation import input_error, located, unknown

#: Family -> short name -> "module:Class".
FAMILIES: dict[str, dict[str, str]] = {
    "workload": {
        "rag": "harness.workloads.synthetic:Rag",
        "chatbot": "harness.workloads.synthetic:Chatbot",
        "long-context": "harness.workloads.synthetic:LongContext",
        "mooncake": "harness.workloads.mooncake:Mooncake",
    },
    "scheduler": {
        "rr": "harness.schedulers.round_robin:RoundRobin",
        "ca": "harness.schedulers.cache_load:CacheAware",
        "cla": "harness.schedulers.cache_load:CacheLoadAware",
        "cla-tuned": "harness.schedulers.cache_load:CacheLoadAwareTuned",
        "netkv-topo": "harness.schedulers.netkv:NetKVTopo",
        "netkv-static": "harness.schedulers.netkv:NetKVStatic",
        "netkv-full": "harness.schedulers.netkv:NetKVFull",
        "replay": "harness.schedulers.replay:Replay",
    },
    "oracle": {
        "sampled": "harness.oracles.sampled:SampledOracle",
        "constant": "harness.oracles.constant:ConstantOracle",
    },
    "serving": {
        "paper": "harness.serving.profiles:PaperProfile",
        "h100-tp4": "harness.serving.profiles:H100Tp4Profile",
    },
    "background": {
        "none": "harness.backgrounds.poisson:NoBackground",
        "constant": "harness.backgrounds.constant:ConstantBackground",
        "poisson": "harness.backgrounds.poisson:PoissonBackground",
        "ns3-tcp": "harness.backgrounds.tcp:TcpBackground",
    },
    "placement": {
        "prefill-racks": "topologies.placement:PrefillRacks",
        "mixed": "topologies.placement:Mixed",
        "list": "topologies.placement:PlacementList",
    },
    "topology": {
        "fat-tree": "topologies.fat_tree:FatTree",
        "k-ary": "topologies.k_ary:KAry",
        "leaf-spine": "topologies.leaf_spine:LeafSpine",
        "hpcc": "topologies.hpcc:Hpcc",
    },
}


@dataclass(frozen=True)
class ComponentSpec:
    """A component's checked configuration: `use` and every parameter, defaults too, as JSON values in base units."""

    use: str
    params: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The flat form that `check` reads back."""
        return {"use": self.use, **self.params}

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))


def resolve(family: str, use: str, *, source: str = "", key: str = "") -> type[Any]:
    """The class that `use` names.

    Raises
    ------
    InputError : there is no such name, module, file or class, or the module cannot be imported.
    """
    with located(source, key):
        return _resolve(family, use)


def check(family: str, spec: object, *, source: str = "", key: str = "") -> ComponentSpec:
    """Check a component's configuration without building it.

    Parameters
    ----------
    spec : a name, a mapping with `use`, or a `ComponentSpec`.

    Raises
    ------
    InputError : unknown component or key, a missing key, or a value that the annotation does not allow.
    """
    with located(source, key):
        use, given = _split(family, spec)
        with located(key="use"):
            parameters = _parameters(_resolve(family, use))
            legal = keys(family, use)
        for name in given:
            if name in CONTEXT:
                raise InputError(f"is set by the run ({CONTEXT[name]}) and cannot be configured", key=name)
            if name not in legal:
                raise InputError(f"{unknown('key', name, legal)} (of {family} {use!r})", key=name)
        params: dict[str, Any] = {}
        for name in legal:
            parameter = parameters[name]
            if name not in given and parameter.required:
                raise InputError(f"is required by {family} {use!r} and missing", key=name)
            value = parameter.read(given[name]) if name in given else parameter.default
            params[name] = parameter.to_json(value)
        return ComponentSpec(use, params)


def create(family: str, spec: object, context: Mapping[str, Any]) -> Any:
    """Build a component; of `context` (see harness.interfaces.CONTEXT) it gets the arguments that it asks for.

    Raises
    ------
    InputError : as `check`, or from the component's own constructor.
    """
    checked = check(family, spec)
    cls = _resolve(family, checked.use)
    parameters = _parameters(cls)
    configured = {name: parameters[name].read(value) for name, value in checked.params.items()}
    supplied = {name: context[name] for name in parameters if name in CONTEXT and name in context}
    try:
        return cls(**configured, **supplied)
    except InputError:
        raise
    except Exception as error:
        if ":" not in checked.use:
            raise  # one of ours: a bug, not the user's mistake
        raise InputError(f"cannot make {family} {checked.use!r}: {type(error).__name__}: {error}") from error


def keys(family: str, use: str) -> tuple[str, ...]:
    """The configuration keys of a component.

    Raises
    ------
    InputError : there is no such component.
    """
    return tuple(name for name in _parameters(_resolve(family, use)) if name not in CONTEXT)


def label(family: str, spec: ComponentSpec) -> str:
    """``use``, followed by the keys that are off their default: tells apart two configurations of one component."""
    parameters = _parameters(_resolve(family, spec.use))
    changed = [
        f"{name}={value}"
        for name, value in spec.params.items()
        if parameters[name].required or value != parameters[name].to_json(parameters[name].default)
    ]
    return f"{spec.use}[{','.join(changed)}]" if changed else spec.use


def describe(family: str) -> list[tuple[str, str]]:
    """Short names of a family, each with the first line of its class's docstring."""
    return [(name, (inspect.getdoc(_resolve(family, name)) or "").partition("\n")[0]) for name in FAMILIES[family]]


@dataclass(frozen=True)
class _Parameter:
    """One constructor argument: its name, annotation and default."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.annotation, config=ConfigDict(arbitrary_types_allowed=True))
        except PydanticUserError:
            # A type with a configuration of its own (a pydantic model, a dataclass) takes none from outside.
            return TypeAdapter(self.annotation)

    def read(self, value: object) -> Any:
        try:
            # Strict JSON has lists for tuples and text for integer keys, but no True for 1 and no "3" for 3.
            return self._adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            raise input_error(error, self.annotation, key=self.name) from error

    def to_json(self, value: object) -> Any:
        return self._adapter.dump_python(value, mode="json", warnings=False)


def _parameters(cls: Any) -> Mapping[str, _Parameter]:
    """Constructor arguments of the class `cls` by name."""
    return _read_parameters(cls)


@cache
def _read_parameters(cls: type[Any]) -> Mapping[str, _Parameter]:
    try:
        hints = typing.get_type_hints(cls.__init__, include_extras=True)
    except NameError as error:
        raise InputError(f"the annotations of {cls.__name__} cannot be read: {error}") from error
    found = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InputError(f"the constructor of {cls.__name__} must name its keyword arguments; it has '{parameter}'")
        found[name] = _Parameter(name, hints.get(name, Any), parameter.default)
    return found


def _split(family: str, spec: object) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, ComponentSpec):
        return spec.use, dict(spec.params)
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, Mapping):
        given = {str(name): value for name, value in spec.items()}
        use = given.pop("use", None)
        if isinstance(use, str):
            return use, given
        raise InputError(f"given {use!r}: must name a {family}: {', '.join(FAMILIES[family])}", key="use")
    names = ", ".join(FAMILIES[family])
    raise InputError(f"given {spec!r}: must name a {family} ({names}) or be a block with 'use' and its keys")


def _resolve(family: str, use: str) -> type[Any]:
    module_name, _, class_name = FAMILIES[family].get(use, use).rpartition(":")
    if not module_name:
        raise InputError(f'{unknown(family, use, FAMILIES[family])}, or "module:Class"')
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else _import(module_name)
    except (ImportError, FileNotFoundError) as error:
        raise InputError(f"cannot load {family} {use!r}: {error}") from error
    except Exception as error:  # a plug-in's module may raise anything, and it is the user's to mend
        raise InputError(f"cannot load {family} {use!r}: {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        own = [n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__]
        raise InputError(f"cannot load {family} {use!r}: {unknown('class', class_name, own)}")
    return found


def _import(name: str) -> ModuleType:
    # A module beside the user's scenario is found although the installed command does not have "." on its path.
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    name = f"netkv_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being executed
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
