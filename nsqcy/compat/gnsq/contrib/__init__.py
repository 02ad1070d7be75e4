"""Receivers of gnsq's on_message and on_giving_up."""
