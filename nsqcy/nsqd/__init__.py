"""The nsqd daemon: master, workers and the messages between them."""
