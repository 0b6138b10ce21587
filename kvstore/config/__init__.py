"""A cluster's configuration, and the names and addresses of its nodes."""
