"""The nsqd daemon: master, workers and what they say to each other."""
