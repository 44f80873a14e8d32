"""Restarts jobs whose GPU memory is fragmented: webhook, policy, worker, and backends for three platforms."""
