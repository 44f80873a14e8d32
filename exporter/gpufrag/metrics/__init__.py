"""The metrics: TABLE says what there is, families() reads a fleet by it, render() answers a scrape.

No other package names a metric.
"""

from .exposition import FleetCollector, render
from .families import families
from .row import Metric
from .table import SECTIONS, TABLE

__all__ = ["SECTIONS", "TABLE", "FleetCollector", "Metric", "families", "render"]
