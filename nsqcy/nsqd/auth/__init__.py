"""AUTH: auth servers and the users file."""
