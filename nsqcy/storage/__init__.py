"""Topic storage: blocks, segments, the journal, and the threads that write them."""
