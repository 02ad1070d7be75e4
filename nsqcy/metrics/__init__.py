"""What daemons tell Prometheus: the table of all metrics, and their exposition."""
