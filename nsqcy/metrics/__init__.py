"""Prometheus metrics: the table of all metrics, and their exposition."""
