"""Gives each part a command. The only place that reads argv."""
