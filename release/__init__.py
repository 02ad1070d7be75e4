"""Tools for releases: builds of the published archives, their SBOMs, and audits of dependencies."""
