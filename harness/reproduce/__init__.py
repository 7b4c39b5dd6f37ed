"""Turns a failing trace into a reproducer that needs no hybridfuzz.

script  runs a reproducer script before it is handed out
folder  the folder around it, with REPORT.md
bisect  finds the releases that show a failure
"""
