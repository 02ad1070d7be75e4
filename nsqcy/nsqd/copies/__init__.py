"""Topics with copies on other machines: files, streams and the registry of a worker."""
