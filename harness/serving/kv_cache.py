"""How large a KV cache is."""

from __future__ import annotations

from fractions import Fraction

from harness.errors import InputError


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, bytes_per_element: float) -> int:
    """KV cache of one token over all layers [bytes]: 2 (K and V) * layers * kv_heads * head_dim * bytes_per_element.

    Llama-3-70B in FP16 (80 layers, 8 KV heads of 128, 2 bytes): 327,680 (NetKV, arXiv 2606.03910, eq. 1). INT4 is 0.5
    bytes an element; scales and zero points of quantised caches are left out.

    Raises
    ------
    InputError : a factor is not positive, or a token does not come to a whole number of bytes.
    """
    factors = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "bytes_per_element": bytes_per_element}
    for name, value in factors.items():
        if not value > 0:
            raise InputError(f"{value} given; must be positive", key=f"model.{name}")
    exact = 2 * layers * kv_heads * head_dim * Fraction(str(bytes_per_element))
    if exact.denominator != 1:
        raise InputError(
            f"{bytes_per_element} given; a token's KV cache must come to a whole number of bytes, not {float(exact)}",
            key="model.bytes_per_element",
        )
    return int(exact)
