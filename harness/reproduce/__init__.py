"""From a failing trace to something that fails elsewhere.

script  a script that needs only the engine, run before it is handed out
folder  the folder around it, with REPORT.md
bisect  which releases show a failure
"""
