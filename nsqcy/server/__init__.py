"""What joins sockets and the event loop to the core: transports, fast paths, metrics."""
