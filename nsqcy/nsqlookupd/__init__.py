"""The nsqlookupd daemon: a registry of topics, channels and the nsqds that have them."""
