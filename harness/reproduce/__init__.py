"""Turns a failing trace into a reproducer that needs no hybridfuzz.

script    runs a reproducer script before it is handed out
versions  the versions in a target's environment
scenario  the requests and events of a trace in words
headline  what a user sees of a failure: title and first paragraph
usual_options  sets options that a failure does not need to their usual values
related   public reports from the known bugs that come with hybridfuzz
report    REPORT.md
folder    the folder around them
on_device  runs a failing trace on real models, for `hybridfuzz confirm`
bisect    finds the releases that show a failure
"""
