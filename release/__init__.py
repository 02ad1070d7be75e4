"""Publishing a version: builds of archives, and audits of their dependencies."""
