"""Explains a violation, in sentences and as a timeline of blocks.

recorder         runs a trace and records its history
activity         records the rows of each step, for facts about a failing run
executed         records the lines of the engine's code that a run executes, and the kinds of its values
kinds            kinds of values, and relations between numbers
history          the recorded history: plain data
history_builder  builds a history from records and views
tag_names        names the prefix that a tag stands for
clauses          one clause for each mark of a block
explain          the sentences
timeline         the table of blocks and steps
answers          tokens that clients receive if the trace runs on
terminal         both for a terminal or a text file
"""
