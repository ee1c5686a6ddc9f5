"""Which decode instance gets a request: one file a family of schedulers."""
