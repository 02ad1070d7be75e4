"""nsqadmin's view of the cluster: nsqds, requests to them, and their responses."""
