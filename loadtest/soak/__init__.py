"""Common parts of the load test and the chaos test: message bodies, requests over time, and their
reports."""
