"""Statistics of the last hours, sampled and kept in memory."""
