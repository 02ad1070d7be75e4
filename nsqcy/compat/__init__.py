"""Other libraries' interfaces over nsqcy.client: a program changes an import line."""
