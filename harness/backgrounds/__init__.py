"""Traffic that is not KV cache."""
