"""An nsqd worker process: the engine, its link to the master, TLS, IDENTIFY."""
