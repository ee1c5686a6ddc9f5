"""The benchmark's runs do what they say; how fast they are is no test's business."""

from __future__ import annotations

import json

from tests.packet.test_network import in_a_fresh_process


def test_scaling_counts_every_packet() -> None:
    """8 flows over two links: twice as many hops as packets, all bytes acknowledged (or an error)."""
    code = """
        import json
        from harness import figures
        from harness.bench import SCALING_COLUMNS, measure_scaling
        rows = [measure_scaling(n) for n in (8_000, 16_000)]
        assert tuple(rows[0]) == SCALING_COLUMNS
        assert figures.scaling(rows).startswith(b"\\x89PNG")
        print(json.dumps([(row["data_packets"], row["data_hops"], row["last_tenth_per_cpu_s"]) for row in rows]))
    """
    assert json.loads(in_a_fresh_process(code)) == [[8_000, 16_000, None], [16_000, 32_000, None]]
