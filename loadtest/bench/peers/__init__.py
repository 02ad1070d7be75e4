"""Alternative brokers, measured with the same work in the same run.

packages   their wheels and Debian packages; missing ones are installed
servers    starting a private instance of each
drivers    the client side of their protocols, without I/O
answers    the inner loops of the drivers, in Cython; built when first needed
work       publishing and consuming with any of the drivers; the rounds
"""
