"""How a trace breaks an invariant, in sentences and as a timeline of blocks.

recorder         watches a target and keeps what it reports
history          what was kept: plain data
history_builder  makes a history from records
tag_names        says which tokens a tag stands for
clauses          one sentence part for each thing that happens to a block
explain          the sentences
timeline         the table of blocks and steps
terminal         both for a terminal or a text file
"""
