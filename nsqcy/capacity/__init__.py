"""`nsqcy capacity`: estimates the number and size of nsqds for a load.

`model` computes the plan from the benchmark results in `measured`; `main` is the command line.
"""
