"""`nsqcy capacity`: how many nsqds of which size a load takes, from what was measured.

`model` computes, from the figures in `measured`; `main` has the words.
"""
