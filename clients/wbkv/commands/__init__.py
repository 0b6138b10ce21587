"""The commands that every install has: those that speak to a cluster through its API."""
