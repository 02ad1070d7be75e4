"""Links between sockets, the event loop and the core: transports, fast paths, metrics."""
