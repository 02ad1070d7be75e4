"""The nsqlookupd daemon: registry of topics, channels and the nsqds that have them."""
