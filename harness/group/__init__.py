"""Which failures are one: reduced, compared by their evidence, kept as findings on disk.

reduce        cuts a failing trace down
neighbours    traces that differ a little from a failing one
variants      traces that differ from another one in one property
investigate   collects the evidence of one failing trace
evidence      what is known about the cause of a failure: plain data
facts         facts about the steps up to a violation
origins       facts about where a wrong value came from
spectrum      the place in the engine's code where failing and passing runs part
same_cause    decides whether failures have one cause
weights       fitted numbers of `same_cause`
still_fails   whether a candidate of a reduction still fails in the same way
finding_store  the folder of one campaign's findings
severity      how much a finding matters: what a client gets, how far from the stock server
reach         how far from the stock server a finding is, by running
known         known.toml: acknowledged bugs, with patches, traces and conditions
cause_text    the text of a cause in its parts
recognition   failures that known bugs with a patch explain, before they are reduced
conditions    known bugs without a patch, recognized by the evidence of their traces
fixes         patches of known bugs applied, and their traces run without them
naming        the known bugs of many failing traces at once
needed_fixes  the fixes without which a failure does not show
verification  does a patch fix a finding
watch         known bugs in the course of a campaign
retest        old bugs that a campaign did not meet are run again
bug_history   triage.json: the history of each bug over campaigns
merge         unites the folders of independent campaigns
remote_output  output folders at a URL
"""
