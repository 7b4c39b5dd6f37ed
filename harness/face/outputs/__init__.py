"""Consumers of a campaign's events.

handler      the interface: start, handle_event, shutdown; and the loop that feeds handlers
console      the terminal
totals_over_time  writes rates.ndjson
bug_history_file  writes triage.json
ndjson       one JSON object a line
final_file   a handler that writes one file at the end
junit        for CI systems
sarif        for code-scanning pages
job_summary  the page of a GitHub workflow's run
summary      one JSON object at the end
"""
