from __future__ import annotations

from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from harness.errors import InputError
from harness.units import (
    MAX_QUANTITY,
    PositiveRateBps,
    RateBps,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "expected_bps"),
    [
        ("400Gbps", 400 * 10**9),
        ("100 Gb/s", 100 * 10**9),
        ("2.5Gbit/s", 2_500_000_000),
        ("40Mbps", 40 * 10**6),
        ("1kbps", 1000),
        ("1Kibps", 1024),
        ("1e3 bps", 1000),
        ("0bps", 0),
        (12, 12),
        (1e9, 10**9),
    ],
)
def test_rates(text: object, expected_bps: int) -> None:
    assert parse_rate(text) == expected_bps


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("64KiB", 65_536),
        ("32MiB", 33_554_432),  # 32 x 2^20
        ("80GB", 80 * 10**9),
        ("400KB", 400_000),  # the RoCE literature's K in KB is 1000
        ("400kB", 400_000),
        ("1.5KiB", 1536),
        ("7B", 7),
        (4096, 4096),
    ],
)
def test_sizes(text: object, expected_bytes: int) -> None:
    assert parse_size(text) == expected_bytes


@pytest.mark.parametrize(
    ("text", "expected_ps"),
    [
        ("300us", 300 * 10**6),
        ("1ns", 1000),
        ("2.5us", 2_500_000),
        ("67ms", 67 * 10**9),
        ("4s", 4 * 10**12),
        ("0.001ns", 1),
        ("1000ns", 10**6),
        ("5µs", 5_000_000),
        ("0s", 0),
    ],
)
def test_durations(text: object, expected_ps: int) -> None:
    assert parse_duration(text) == expected_ps


RATE = 'a rate in bits per second, such as "400Gbps", "2.5 Gb/s" or a whole number of bit/s'
SIZE = 'a size in bytes, such as "64KiB" (65,536), "80GB" (decimal), "1000B" or a whole number of bytes'
TIME = 'a time such as "1ns", "2.5us", "300ms", "4s" or a whole number of ps'


@pytest.mark.parametrize(
    ("parse", "given_value", "message"),
    [
        (
            parse_size,
            "64Kb",
            f"'64Kb' has the unit 'Kb' (bits; a size is in bytes: KB); allowed: {SIZE}",
        ),
        (
            parse_rate,
            "450GB/s",
            f"'450GB/s' has the unit 'GB/s' (bytes; a rate is in bits: Gbps, 8 times the number); allowed: {RATE}",
        ),
        (parse_size, "100Gbps", f"'100Gbps' has the unit 'Gbps' (bits; a size is in bytes: GB); allowed: {SIZE}"),
        (parse_duration, "3min", f"'3min' has the unit 'min'; allowed: {TIME}"),
        (parse_size, "64", f"'64' has a number without a unit; allowed: {SIZE}"),
        (parse_rate, "-1Gbps", f"'-1Gbps' is negative; allowed: {RATE}"),
        (parse_rate, -5, f"-5 is negative; allowed: {RATE}"),
        (parse_duration, "0.5ps", "'0.5ps' is not a whole number of ps"),
        (parse_size, 0.5, "0.5 is not a whole number of bytes"),
        (parse_duration, float("nan"), f"nan is not {TIME}"),
        (parse_duration, float("inf"), f"inf is not {TIME}"),
        (parse_rate, "nan", f"'nan' is not {RATE}"),
        (parse_rate, True, f"True is not {RATE}"),
        (parse_rate, None, f"None is not {RATE}"),
        (parse_rate, "", f"'' is not {RATE}"),
        (parse_rate, "٤Gbps", f"'٤Gbps' is not {RATE}"),
        (parse_duration, "107days", f"'107days' has the unit 'days'; allowed: {TIME}"),
        # 2^63 ps are 9,223,372.04 s
        (parse_duration, "9223373s", f"'9223373s' is too large: at most {MAX_QUANTITY} ps"),
    ],
)
def test_refused(parse: object, given_value: object, message: str) -> None:
    assert callable(parse)
    with pytest.raises(InputError) as caught:
        parse(given_value)
    assert str(caught.value) == message


def test_aliases_parse_in_pydantic_and_keep_further_bounds() -> None:
    assert TypeAdapter(RateBps).validate_python("1Gbps") == 10**9
    with pytest.raises(ValidationError, match="greater than 0"):
        TypeAdapter(PositiveRateBps).validate_python("0bps")
    assert TypeAdapter(Annotated[RateBps | None, "optional"]).validate_python(None) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_rate(400 * 10**9), "400Gbps"),
        (format_rate(3_600_000_000_000), "3.6Tbps"),
        (format_rate(0), "0bps"),
        (format_size(65_536), "64KiB"),
        (format_size(80 * 10**9), "80GB"),
        (format_size(1000), "1kB"),
        (format_duration(2_500_000), "2.5us"),
        (format_duration(0), "0ps"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected


@given(st.integers(min_value=0, max_value=MAX_QUANTITY))
def test_formatted_text_reads_back_exactly(quantity: int) -> None:
    assert parse_rate(format_rate(quantity)) == quantity
    assert parse_size(format_size(quantity)) == quantity
    assert parse_duration(format_duration(quantity)) == quantity
