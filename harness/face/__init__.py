"""What a person types and reads: the command line, and the outputs of a campaign.

commands/  the command line, one module for each command
outputs/   what becomes of a campaign's events: terminal, NDJSON, JUnit, SARIF
"""
