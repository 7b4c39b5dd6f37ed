"""How good the search is: lines of an engine that it reaches, planted bugs that it finds.

coverage/   lines of an engine that traces reach
detection/  whether planted bugs are found, and how fast
"""
