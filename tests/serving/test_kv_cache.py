from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.serving.kv_cache import kv_bytes_per_token

LLAMA_3_70B = {"layers": 80, "kv_heads": 8, "head_dim": 128}


@pytest.mark.parametrize(("bytes_per_element", "expected"), [(2, 327_680), (1, 163_840), (0.5, 81_920)])
def test_llama_3_70b(bytes_per_element: float, expected: int) -> None:
    """2 * 80 * 8 * 128 * 2: check 1 of the notes, and the same for FP8 and INT4."""
    assert kv_bytes_per_token(**LLAMA_3_70B, bytes_per_element=bytes_per_element) == expected


def test_parts_of_a_byte_are_refused() -> None:
    with pytest.raises(InputError, match=r"model.bytes_per_element: 0.3 given; .* not 0.6"):
        kv_bytes_per_token(layers=1, kv_heads=1, head_dim=1, bytes_per_element=0.3)


def test_not_positive() -> None:
    with pytest.raises(InputError, match="model.layers: 0 given; must be positive"):
        kv_bytes_per_token(layers=0, kv_heads=8, head_dim=128, bytes_per_element=2)
