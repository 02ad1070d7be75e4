# Only for other compiled modules.
