"""Where requests come from: one file a workload."""
