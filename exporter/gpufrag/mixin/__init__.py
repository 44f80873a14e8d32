"""Recording rules, alerts and dashboards, built from metrics.TABLE and one Config."""
