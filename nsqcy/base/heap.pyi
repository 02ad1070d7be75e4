# Used only by other compiled modules.
