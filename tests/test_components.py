from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from harness import components
from harness.components import FAMILIES, ComponentSpec
from harness.errors import InputError
from harness.units import DurationPs, PositiveRateBps


class Sample:
    """A component with a key of every kind.

    More text.
    """

    def __init__(
        self,
        *,
        rate: PositiveRateBps,
        delay: DurationPs = 5,
        mode: Literal["one", "two"] = "one",
        share: dict[int, Annotated[float, Field(ge=0, le=1)]] | None = None,
        ids: tuple[int, ...] = (1, 2),
        on: bool = False,
        seed: int,
        n_requests: int = 3,
    ) -> None:
        self.all = (rate, delay, mode, share, ids, on, seed, n_requests)


class TakesAnything:
    def __init__(self, **anything: int) -> None:
        self.anything = anything


class Misannotated:
    def __init__(self, *, x: Absent = 1) -> None:  # type: ignore[name-defined]  # noqa: F821
        self.x = x


@pytest.fixture(autouse=True)
def sample_family(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"sample": f"{__name__}:Sample", "anything": f"{__name__}:TakesAnything"}
    monkeypatch.setitem(FAMILIES, "sample", names)


def refusal(spec: object, family: str = "sample") -> str:
    with pytest.raises(InputError) as caught:
        components.check(family, spec, source="lab.yaml", key="part")
    return str(caught.value)


def test_check_gives_every_parameter_in_base_units() -> None:
    spec = components.check("sample", {"use": "sample", "rate": "2Gbps", "share": {2: 0.5}, "ids": [4]})
    assert spec == ComponentSpec(
        "sample",
        {"rate": 2 * 10**9, "delay": 5, "mode": "one", "share": {"2": 0.5}, "ids": [4], "on": False},
    )
    # What is written to disk and read back is the same component.
    assert components.check("sample", json.loads(json.dumps(spec.to_json()))) == spec
    assert hash(components.check("sample", spec)) == hash(spec)


def test_create_adds_what_the_run_supplies() -> None:
    built = components.create("sample", {"use": "sample", "rate": 7}, {"seed": 11, "cluster": None})
    assert built.all == (7, 5, "one", None, (1, 2), False, 11, 3)


def test_label_names_the_keys_off_their_default() -> None:
    plain = components.check("placement", "prefill-racks")
    other = components.check("placement", {"use": "prefill-racks", "racks": 2})
    assert components.label("placement", plain) == "prefill-racks"
    assert components.label("placement", other) == "prefill-racks[racks=2]"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "smaple",
            ".use: unknown sample 'smaple'; did you mean 'sample'? Allowed: sample, anything, or \"module:Class\"",
        ),
        (
            {"use": "sample", "rate": 1, "dellay": 3},
            (
                ".dellay: unknown key 'dellay'; did you mean 'delay'? "
                "Allowed: rate, delay, mode, share, ids, on (of sample 'sample')"
            ),
        ),
        ({"use": "sample"}, ".rate: is required by sample 'sample' and missing"),
        (
            {"use": "sample", "rate": "-3Gbps"},
            (
                ".rate: '-3Gbps' is negative; allowed: a rate in bits per second, such as \"400Gbps\", "
                '"2.5 Gb/s" or a whole number of bit/s'
            ),
        ),
        ({"use": "sample", "rate": 0}, ".rate: given 0: must be greater than 0"),
        ({"use": "sample", "rate": 1, "mode": "three"}, ".mode: given 'three': must be 'one' or 'two'"),
        ({"use": "sample", "rate": 1, "on": 1}, ".on: given 1: must be true or false"),
        ({"use": "sample", "rate": 1, "ids": [1, True]}, ".ids.1: given True: must be a whole number"),
        (
            {"use": "sample", "rate": 1, "share": {2: 1.5}},
            ".share.2: given 1.5: must be less than or equal to 1",
        ),
        (
            {"use": "sample", "rate": 1, "seed": 4},
            (
                ".seed: is set by the run (int: derived from (scenario, workload, repetition), never from the "
                "scheduler) and cannot be configured"
            ),
        ),
        ({"rate": 1}, ".use: given None: must name a sample: sample, anything"),
        (7, ": given 7: must name a sample (sample, anything) or be a block with 'use' and its keys"),
        (
            "anything",
            ".use: the constructor of TakesAnything must name its keyword arguments; it has '**anything: 'int''",
        ),
        (
            "no_such_lab.sched:Mine",
            ".use: cannot load sample 'no_such_lab.sched:Mine': No module named 'no_such_lab'",
        ),
        (
            "topologies.k_ary:Kary",
            (
                ".use: cannot load sample 'topologies.k_ary:Kary': unknown class 'Kary'; did you mean 'KAry'? "
                "Allowed: KAry"
            ),
        ),
    ],
)
def test_refused(spec: object, message: str) -> None:
    assert refusal(spec) == f"lab.yaml: part{message}"


def test_unreadable_annotations_are_the_plug_ins_mistake() -> None:
    assert refusal(f"{__name__}:Misannotated") == (
        "lab.yaml: part.use: the annotations of Misannotated cannot be read: name 'Absent' is not defined"
    )


PLUG_IN = '''
from dataclasses import dataclass
from harness.units import DurationPs

@dataclass
class Inner:
    x: int

class Mine:
    """Mine."""
    def __init__(self, *, alpha: float = 0.5, wait: DurationPs = 0):
        self.alpha, self.wait = alpha, wait
'''


def test_plug_in_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.py").write_text(PLUG_IN)
    monkeypatch.chdir(tmp_path)
    spec = components.check("scheduler", {"use": "lab.py:Mine", "alpha": 0.25, "wait": "3ns"})
    assert spec.to_json() == {"use": "lab.py:Mine", "alpha": 0.25, "wait": 3000}
    built = components.create("scheduler", spec, {})
    assert (built.alpha, built.wait) == (0.25, 3000)
    assert components.resolve("scheduler", "lab.py:Mine") is components.resolve("scheduler", f"{tmp_path}/lab.py:Mine")


def test_plug_in_from_a_module_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_beside_the_scenario.py").write_text(PLUG_IN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert components.create("scheduler", "lab_beside_the_scenario:Mine", {}).alpha == 0.5


def test_plug_in_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    missing = tmp_path / "absent.py"
    assert (
        refusal(f"{missing}:X") == f"lab.yaml: part.use: cannot load sample '{missing}:X': there is no file {missing}"
    )
    broken = tmp_path / "broken.py"
    broken.write_text("def (:\n")
    assert refusal(f"{broken}:X").startswith(f"lab.yaml: part.use: cannot load sample '{broken}:X': SyntaxError")
    failing = tmp_path / "failing.py"
    failing.write_text("raise RuntimeError('out of order')\n")
    assert refusal(f"{failing}:X").endswith(f"cannot load sample '{failing}:X': RuntimeError: out of order")
    unmade = tmp_path / "unmade.py"
    unmade.write_text("class X:\n    def __init__(self) -> None:\n        raise KeyError('key')\n")
    with pytest.raises(InputError, match="cannot make sample '.*unmade.py:X': KeyError: 'key'"):
        components.create("sample", f"{unmade}:X", {})


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "sample"])
def test_every_short_name_leads_to_a_class_with_a_docstring(family: str) -> None:
    described = components.describe(family)
    assert [name for name, _ in described] == list(FAMILIES[family])
    assert all(line and not line.startswith(" ") for _, line in described)
