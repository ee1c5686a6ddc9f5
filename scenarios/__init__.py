"""Experiments as YAML files; a package so that an installed netkv-cosim finds them."""
