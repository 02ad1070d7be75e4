"""Client of etcd's JSON gateway: blocking, for use in threads."""
