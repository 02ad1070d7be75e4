"""How a topic is stored: blocks, segments, the journal, and the threads that write them."""
