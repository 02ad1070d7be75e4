"""`nsqcy doctor`: what is wrong with a host and a cluster, and what to do about it.

Looking (`look_*`) is apart from judging (`host`, `cluster`): a check is a pure function of facts.
"""
