"""Rates, sizes and times as people write them, to and from the integers that the harness computes with.

Inside, a rate is an integer in bit/s, a size in bytes, a time in picoseconds. Text carries its unit: ``"400Gbps"``,
``"64KiB"``, ``"2.5us"``. Prefixes are decimal (k or K, M, G, T) or, with an i, binary (Ki, Mi, Gi, Ti); ``b`` is a
bit and ``B`` a byte, and neither is taken for the other. A bare whole number is in the base unit already.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field

from harness.errors import InputError

#: The largest quantity: counters and times are signed 64-bit wherever they are stored (2^63 - 1 ps are 106 days).
MAX_QUANTITY = 2**63 - 1

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_PREFIXES = {**_DECIMAL, **_BINARY}

_RATE_UNITS = {p + suffix: f for p, f in _PREFIXES.items() for suffix in ("bps", "b/s", "bit/s")}
_SIZE_UNITS = {p + "B": f for p, f in _PREFIXES.items()}
_DURATION_UNITS = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "μs": 10**6, "ms": 10**9, "s": 10**12}

_RATE_ALLOWED = 'a rate in bits per second, such as "400Gbps", "2.5 Gb/s" or a whole number of bit/s'
_SIZE_ALLOWED = 'a size in bytes, such as "64KiB" (65,536), "80GB" (decimal), "1000B" or a whole number of bytes'
_DURATION_ALLOWED = 'a time such as "1ns", "2.5us", "300ms", "4s" or a whole number of ps'

_BIT_SUFFIX = re.compile(r"(?P<prefix>[kKMGT]?i?)(b|bit|bits|bps|b/s|bit/s)")
_BYTE_SUFFIX = re.compile(r"(?P<prefix>[kKMGT]?i?)(B|Bps|B/s|Byte|Bytes|byte|bytes)")
_QUANTITY = re.compile(r"(?P<number>-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?)\s*(?P<unit>\S*)", re.ASCII)


def parse_rate(value: object) -> int:
    """Read a rate [bit/s].

    Raises
    ------
    InputError : not a rate, negative, in bytes, or not a whole number of bit/s.
    """
    return _parse(value, _RATE_UNITS, "bit/s", _RATE_ALLOWED, _rate_hint)


def parse_size(value: object) -> int:
    """Read a size [bytes].

    Raises
    ------
    InputError : not a size, negative, in bits, or not a whole number of bytes.
    """
    return _parse(value, _SIZE_UNITS, "bytes", _SIZE_ALLOWED, _size_hint)


def parse_duration(value: object) -> int:
    """Read a time [ps].

    Raises
    ------
    InputError : not a time, negative, or not a whole number of ps.
    """
    return _parse(value, _DURATION_UNITS, "ps", _DURATION_ALLOWED, _no_hint)


RateBps = Annotated[int, BeforeValidator(parse_rate)]
SizeBytes = Annotated[int, BeforeValidator(parse_size)]
DurationPs = Annotated[int, BeforeValidator(parse_duration)]
PositiveRateBps = Annotated[int, Field(gt=0), BeforeValidator(parse_rate)]
PositiveSizeBytes = Annotated[int, Field(gt=0), BeforeValidator(parse_size)]
PositiveDurationPs = Annotated[int, Field(gt=0), BeforeValidator(parse_duration)]


def format_rate(rate_bps: int) -> str:
    """A rate [bit/s] as text that `parse_rate` reads back exactly."""
    return _format(rate_bps, {p + "bps": f for p, f in _DECIMAL.items() if p != "K"})


def format_size(size_bytes: int) -> str:
    """A size [bytes] as text that `parse_size` reads back exactly; binary prefixes where they make it shorter."""
    decimal = _format(size_bytes, {p + "B": f for p, f in _DECIMAL.items() if p not in ("K", "T")})
    binary = _format(size_bytes, {"B": 1, **{p + "B": f for p, f in _BINARY.items()}})
    return min(decimal, binary, key=len)


def format_duration(time_ps: int) -> str:
    """A time [ps] as text that `parse_duration` reads back exactly."""
    return _format(time_ps, {u: f for u, f in _DURATION_UNITS.items() if u.isascii()})


def _parse(value: object, units: Mapping[str, int], base: str, allowed: str, hint: Callable[[str], str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{value!r} is not {allowed}")
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        if match is None:
            raise InputError(f"{value!r} is not {allowed}")
        unit = match["unit"]
        if unit not in units:
            what = f"the unit {unit!r}" if unit else "a number without a unit"
            raise InputError(f"{value!r} has {what}{hint(unit)}; allowed: {allowed}")
        exact = Fraction(match["number"]) * units[unit]
    else:
        if not math.isfinite(value):
            raise InputError(f"{value!r} is not {allowed}")
        exact = Fraction(value)
    if exact < 0:
        raise InputError(f"{value!r} is negative; allowed: {allowed}")
    if exact.denominator != 1:
        raise InputError(f"{value!r} is not a whole number of {base}")
    if exact > MAX_QUANTITY:
        raise InputError(f"{value!r} is too large: at most {MAX_QUANTITY} {base}")
    return int(exact)


def _no_hint(_unit: str) -> str:
    return ""


def _rate_hint(unit: str) -> str:
    match = _BYTE_SUFFIX.fullmatch(unit)
    return f" (bytes; a rate is in bits: {match['prefix']}bps, 8 times the number)" if match else ""


def _size_hint(unit: str) -> str:
    match = _BIT_SUFFIX.fullmatch(unit)
    return f" (bits; a size is in bytes: {match['prefix']}B)" if match else ""


def _format(quantity: int, units: Mapping[str, int]) -> str:
    unit, factor = max(((u, f) for u, f in units.items() if f <= max(quantity, 1)), key=lambda pair: pair[1])
    whole, rest = divmod(quantity, factor)
    digits = ""
    while rest:  # every factor is a product of 2 and 5 only, so the decimals end
        digit, rest = divmod(rest * 10, factor)
        digits += str(digit)
    return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
