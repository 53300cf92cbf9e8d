"""Says what a table, a feature, a batch, a plan *are*, and what can go wrong. Imports nothing of ours."""
