"""HTTP for daemons: framing, connections, routes. Knows no daemon and no route of one."""
