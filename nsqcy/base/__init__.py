"""Building blocks without I/O: bytes, checksums, heaps, histograms, ids and headers."""
