"""Which links' frames are written to pcap files, which files these are, and how large they can become."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from harness.errors import InputError
from harness.types import Topology

#: A capture ends when its file has this size [bytes]: some 10 million frames.
LIMIT_BYTES = 1_000_000_000

#: pcap's record header, and Ethernet 14, IPv4 20, UDP 8, BTH 12: what a data packet leaves in a file, payload aside.
_RECORD_BYTES = 16 + 54


def ports_named(topology: Topology, text: str) -> tuple[int, ...]:
    """The ports that `text` names: one as in `Topology.port_names` ("tor0->agg1"), or both of a link ("tor0-agg1").

    Raises
    ------
    InputError : there is no such port or link.
    """
    names: dict[str, tuple[int, ...]] = {name: (port,) for port, name in enumerate(topology.port_names)}
    for link in topology.links:
        for port in (2 * link.id, 2 * link.id + 1):
            names.setdefault(topology.port_names[port].replace("->", "-", 1), (2 * link.id, 2 * link.id + 1))
    if text not in names:
        near = difflib.get_close_matches(text, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        one, both = topology.port_names[0], topology.port_names[0].replace("->", "-", 1)
        raise InputError(f"unknown link {text!r}{hint}; a link is written {both!r}, one direction of it {one!r}")
    return names[text]


def files(topology: Topology, links: Iterable[str], prefix: str = "") -> dict[int, Path]:
    """Per port the file of its frames: `prefix`, which may begin with directories, and the name of the port.

    Raises
    ------
    InputError : there is no such port or link.
    """
    ports = sorted({port for text in links for port in ports_named(topology, text)})
    return {p: Path(f"{prefix}{topology.port_names[p].replace('->', '-to-')}.pcap") for p in ports}


def largest_bytes(data_packets: int, snap_bytes: int, limit_bytes: int = LIMIT_BYTES) -> int:
    """The size of one file if all data packets of a run crossed its link [bytes]; ACKs aside."""
    return min(limit_bytes, data_packets * (_RECORD_BYTES + snap_bytes))
