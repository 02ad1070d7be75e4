"""Metrics for Prometheus: the table of all metrics, and their exposition."""
