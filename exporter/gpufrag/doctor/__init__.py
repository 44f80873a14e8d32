"""`gpufrag doctor`: read-only checks of a host, a cluster, a Prometheus and rendered manifests.

Each module has a table CHECKS. A check is a function from its context to Ok, Warn, Fail or Unknown.
"""
