"""Draws the dashboards in grafana/ as PNGs, from simulated data in a real Prometheus, without Grafana.

    python -m pip install -e '.[test,mixin,render]'
    PYTHONPATH=tools python -m render_dashboards --out docs/img

Needs `prometheus` and `promtool` (Debian: prometheus).
"""
