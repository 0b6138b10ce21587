"""Clusters of processes on this machine: folder, start, supervision, status."""
