"""`nsqcy capacity`: estimates the number and size of the nsqds that a load requires.

`model` computes the plan from the benchmark results in `measured`; `main` is the command line.
"""
