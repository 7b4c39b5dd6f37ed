"""What happened in a run, as data: blocks, rows, lines of the engine, tokens of the clients.

recorder         runs a trace and records its history
history          the recorded history: plain data
history_builder  builds a history from records and views
activity         records the rows of each step, for facts about a failing run
executed         records the lines of the engine's code that a run executes, and the kinds of its values
kinds            kinds of values, and relations between numbers
tag_names        names the prefix that a tag stands for
answers          tokens that clients receive if the trace runs on
line_recorder    the lines of an engine that the traces of one worker execute
reached_lines    all lines of a campaign, merged and on disk
watched_lines    which of some lines run
changed_lines    lines that have changed in a git checkout, how many traces run them, and what to aim at
engine_source    modules, functions and statements of Python source
"""
