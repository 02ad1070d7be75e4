"""AUTH: auth servers and the file of users."""
