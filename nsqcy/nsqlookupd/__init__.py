"""The nsqlookupd daemon: who has which topics and channels, and where."""
