"""What keeps alerts and restarts from working, on a host, in a cluster or in Prometheus. It only reads.

`host.CHECKS`, `cluster.CHECKS` and `prometheus.CHECKS` are the tables; a check is a function from its context to Ok,
Warn or Fail, and none knows of another.
"""
