"""Topics with copies on other machines: a worker's files, streams and registry."""
