"""Pure functions from fetched data to page views."""
