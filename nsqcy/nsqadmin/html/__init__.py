"""The parts that pages are made of."""
