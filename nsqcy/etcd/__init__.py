"""Blocking client for etcd's JSON gateway, for use in threads."""
