"""The HTTP server of the daemons: sockets, parsing, routing. Knows no daemon."""
