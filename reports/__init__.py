"""Turns result records into something to read."""
