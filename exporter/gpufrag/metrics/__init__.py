"""The metrics: TABLE lists them, families() reads a fleet with it, render() answers a scrape."""

from .exposition import FleetCollector, families, render
from .table import SECTIONS, TABLE, Metric

__all__ = ["SECTIONS", "TABLE", "FleetCollector", "Metric", "families", "render"]
