"""Topology builders, placement policies, and presets (presets/*.yaml).

A builder is a class whose keyword arguments are its configuration; `build()` gives a `harness.types.Topology`, and
`gpus_per_server` and `gpus_per_instance` say how many instances a host holds (see `topologies.placement.slots`).
"""
