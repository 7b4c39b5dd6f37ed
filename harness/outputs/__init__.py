"""What becomes of a campaign's events.

console  the terminal
ndjson   one JSON object a line
junit    for CI systems
rates    speed and findings over time
"""
