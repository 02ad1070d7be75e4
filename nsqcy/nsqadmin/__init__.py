"""nsqadmin: what a cluster has, for people and scripts, and what they do to it."""
