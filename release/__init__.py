"""Tools for releases: builds of the published archives, and audits of their dependencies."""
