"""Figures and report: the same bytes for the same tables, and something to look at when parts are missing."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness import figures

ALL = {"ttft-by-scheduler.png", "ttft-cdf.png", "tier-shares.png", "transfer-by-tier.png", "link-utilisation.png"}
PNG = b"\x89PNG\r\n\x1a\n"


def make_requests(cells: list[tuple[str, str, int]], *, n: int = 20, tiers: tuple[int, ...] = (2, 3)) -> pd.DataFrame:
    """`n` requests a cell, the first two of them warm-up; TTFT 1 to 2 s."""
    parts = []
    for i, (backend, scheduler, seed) in enumerate(cells):
        rng = np.random.default_rng(i)
        transfer_ps = rng.integers(10**11, 10**12, n)
        arrival_ps = np.arange(n) * 10**12
        parts.append(
            pd.DataFrame(
                {
                    "backend": backend,
                    "scheduler": scheduler,
                    "seed": seed,
                    "arrival_ps": arrival_ps,
                    "transfer_start_ps": arrival_ps + 10**12,
                    "transfer_end_ps": arrival_ps + 10**12 + transfer_ps,
                    "first_token_ps": arrival_ps + 10**12 + transfer_ps,
                    "last_token_ps": arrival_ps + 5 * 10**12,
                    "tier": rng.choice(tiers, n),
                    "warmup": np.arange(n) < 2,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def make_links(cells: list[tuple[str, str, int]]) -> pd.DataFrame:
    rows = [
        {"backend": b, "scheduler": s, "seed": seed, "tier": tier, "start_ps": t * 10**12, "utilisation": 0.1 * tier}
        for b, s, seed in cells
        for tier in (0, 1, 2, 3)
        for t in range(5)
    ]
    return pd.DataFrame(rows)


def make_summary(cells: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    return [{"backend": b, "scheduler": s, "seed": seed, "ttft_mean_ms": 1234.5} for b, s, seed in cells]


PAIRED = [(b, s, seed) for b in ("packet", "fluid") for s in ("rr", "netkv-full") for seed in (1, 2)]


def draw(cells: list[tuple[str, str, int]], **options: Any) -> dict[str, bytes]:
    return figures.draw(make_summary(cells), make_requests(cells, **options), make_links(cells))


def test_every_figure_is_drawn_and_the_same_twice() -> None:
    first, second = draw(PAIRED), draw(PAIRED)
    assert set(first) == ALL
    assert all(image.startswith(PNG) for image in first.values())
    assert first == second


@pytest.mark.parametrize(
    "cells",
    [
        [("packet", "rr", 1)],  # one scheduler, one seed
        [("packet", f"path/to/lab.py:Scheduler{i}", 1) for i in range(12)],  # more than the palette has colours
    ],
)
def test_few_and_many_schedulers(cells: list[tuple[str, str, int]]) -> None:
    assert set(draw(cells)) == ALL


@pytest.mark.parametrize("tiers", [(0,), (0, 1, 2, 3), (1,)])
def test_any_tiers(tiers: tuple[int, ...]) -> None:
    assert set(draw(PAIRED[:2], tiers=tiers)) == ALL


def test_a_single_request_has_no_interval_but_a_figure() -> None:
    assert set(draw([("packet", "rr", 1)], n=3)) == ALL


def test_a_cell_without_requests_is_said_to_have_none() -> None:
    images = figures.draw(make_summary(PAIRED), make_requests(PAIRED[:2]), make_links(PAIRED[:2]))
    assert set(images) == ALL


def test_nothing_finished_nothing_drawn() -> None:
    cells = [("packet", "rr", 1)]
    requests = make_requests(cells).assign(last_token_ps=-1, first_token_ps=-1)
    assert set(figures.draw(make_summary(cells), requests, make_links(cells))) == {"link-utilisation.png"}
    assert figures.draw(make_summary(cells), None, None) == {}


def test_axes_carry_units_and_bars_the_means() -> None:
    cells = [("packet", "rr", 1), ("packet", "rr", 2)]
    requests = make_requests(cells)
    counted = requests.loc[~requests["warmup"]]
    figure = figures.ttft_by_scheduler(pd.DataFrame(make_summary(cells)), counted)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "mean TTFT [ms]"
    ttft_ms = (counted["first_token_ps"] - counted["arrival_ps"]) / 1e9
    mean = ttft_ms.groupby(counted["seed"]).mean().mean()
    assert axes.patches[0].get_height() == pytest.approx(mean)
    assert f"{mean:,.0f}" in {text.get_text() for text in axes.texts}
    assert "t over 2 seeds" in axes.get_xlabel()
    one_seed = figures.ttft_by_scheduler(pd.DataFrame(make_summary(cells[:1])), counted.loc[counted["seed"] == 1])
    assert "bootstrap over the requests of one seed" in one_seed.axes[0].get_xlabel()


def test_shares_are_of_the_requests_that_count() -> None:
    cells = [("packet", "rr", 1)]
    requests = make_requests(cells, n=4).assign(tier=[2, 2, 3, 3]).iloc[:3]
    figure = figures.tier_shares(pd.DataFrame(make_summary(cells)), requests)
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([2 / 3, 1 / 3])


def make_traces() -> pd.DataFrame:
    """Two intervals of 10 us: 125,000 KV bytes and no pause, then nothing sent and half of the time held."""
    rows = {
        "start_ps": [0, 10**7],
        "end_ps": [10**7, 2 * 10**7],
        "queue_max_bytes": [4158, 100_000],
        "control_bytes": [0, 0],
        "kv_bytes": [125_000, 0],
        "background_bytes": [0, 0],
        "paused_ps": [0, 5 * 10**6],
    }
    cells = [(s, seed, p) for s in ("rr", "netkv-full") for seed in (1, 2) for p in ("tor0->agg1", "a->b#1")]
    return pd.concat([pd.DataFrame({"scheduler": s, "seed": seed, "port": p, **rows}) for s, seed, p in cells])


def test_a_figure_per_traced_port() -> None:
    cells = [("packet", "rr", 1)]
    images = figures.draw(make_summary(cells), None, None, make_traces())
    assert set(images) == {"port-tor0-to-agg1.png", "port-a-to-b#1.png"}
    assert images == figures.draw(make_summary(cells), None, None, make_traces())


def test_a_ports_figure_shows_rate_queue_and_pauses_of_the_first_seed() -> None:
    traces = make_traces()
    figure = figures.port_trace("tor0->agg1", traces.loc[traces["port"] == "tor0->agg1"])
    rate, _, queue, _ = figure.axes
    assert (rate.get_ylabel(), queue.get_ylabel()) == ("rate [Gb/s]", "longest queue [KB]")
    pauses, kv = (patch.get_data() for patch in rate.patches)
    assert kv.values.tolist() == [100.0, 0.0] and kv.edges.tolist() == [0.0, 0.01, 0.02]  # 1 Mbit in 10 us
    assert pauses.values.tolist() == [0.0, 0.5]
    assert queue.patches[1].get_data().values.tolist() == [4.158, 100.0]


# --- Report -----------------------------------------------------------------------------------------------------------


def make_run(**changes: Any) -> dict[str, Any]:
    cell = {"backend": "packet", "scheduler": "rr", "seed": 1, "status": "complete", "error": "", "detail": ""}
    return {
        "name": "rag",
        "run_id": "20260101-000000-abcdef01",
        "status": "complete",
        "started_utc": "2026-01-01T00:00:00+00:00",
        "command": "netkv-cosim run rag",
        "wall_s": 12.5,
        "packets": 10,
        "packet_hops": 40,
        "peak_memory_bytes": 300_000_000,
        "versions": {"project": "0.1.0", "git_commit": None, "ns3": "3.44.post0"},
        "host": {"name": "box", "cores": 2},
        "scenario": {"name": "rag", "cluster": {"gpus_per_instance": 4}},
        "cells": [{**cell, "counters": {"drops": 0, "data_packets": 10}}],
        **changes,
    }


class Links(HTMLParser):
    """Collects what a page loads from elsewhere, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_needs_no_other_file() -> None:
    text = figures.report(make_run(), make_summary(PAIRED), [], {"ttft-cdf.png": PNG + b"x"})
    parser = Links()
    parser.feed(text)
    assert parser.open == []
    assert parser.sources == [f"data:image/png;base64,{base64.b64encode(PNG + b'x').decode()}"]
    assert "1,234.500" in text
    assert "<td>10</td>" in text
    assert re.search(r"<th>drops</th>.*<td>0</td>", text, re.DOTALL)  # counters also when zero
    assert "gpus_per_instance: 4" in text


def test_the_report_names_failed_cells_and_escapes_what_they_said() -> None:
    cell = {"backend": "packet", "scheduler": "rr", "seed": 3, "status": "failed", "error": "a < b", "detail": "<tb>"}
    text = figures.report(make_run(status="failed", cells=[cell]), make_summary(PAIRED[:1]), [], {})
    assert "packet / rr / seed 3: failed" in text
    assert "a &lt; b" in text
    assert "&lt;tb&gt;" in text
    assert "<tb>" not in text
    assert "nothing to draw" in text
