"""A worker process of nsqd: the engine, its line to the master, TLS, IDENTIFY."""
