"""The daemons' HTTP server: sockets, parsing, routing. Independent of any particular daemon."""
