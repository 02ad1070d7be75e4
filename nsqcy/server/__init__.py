"""Connection of sockets and the event loop with the core: transports, fast paths, metrics."""
