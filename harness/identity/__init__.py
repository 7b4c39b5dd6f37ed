"""Groups failing traces by cause.

evidence   what a failing trace and a finding show about their cause: plain data
"""
