"""The daemons' HTTP server: sockets, parsing, routing. Independent of particular daemons."""
