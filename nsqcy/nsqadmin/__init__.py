"""nsqadmin: web pages and HTTP API to view and operate a cluster."""
