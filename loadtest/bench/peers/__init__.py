"""The brokers a user would pick instead, on the same work, in the same run.

packages   what Debian has of them, installed when it is missing
servers    starting one of them, privately
drivers    its protocol from the side of a client, without I/O
answers    the inner loops of that, in Cython; built when first needed
work       publishing and consuming by any of the drivers; the rounds
"""
