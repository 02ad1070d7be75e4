"""A worker process of nsqd: the engine, its link to the master, TLS, IDENTIFY."""
