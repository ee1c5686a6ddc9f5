"""Network models without packets, by name."""

from __future__ import annotations

from harness.fluid.dcqcn import MaxMinDcqcn
from harness.fluid.maxmin import MaxMin, MaxMinAggregate, MaxMinGoodput, MaxMinTier
from harness.fluid.model import FluidModel
from harness.fluid.tier import Tier

MODELS: dict[str, type[FluidModel]] = {
    "maxmin": MaxMin,
    "maxmin-tier": MaxMinTier,
    "maxmin-goodput": MaxMinGoodput,
    "maxmin-aggregate": MaxMinAggregate,
    "maxmin-dcqcn": MaxMinDcqcn,
    "tier": Tier,
}
