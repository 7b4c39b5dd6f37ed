"""Known bugs: the file that lists them, their patches, and the failures that they explain.

known_toml      known.toml: acknowledged bugs, with patches, traces and conditions (`Known`, `load_known`)
cause_text      the text of a cause in its parts
fixes           patches of known bugs applied, and their traces run without them
recognition     failures that known bugs with a patch explain, before they are reduced
recognize_many  the same for many failing traces at once, when a search has ended
conditions      failures that known bugs without a patch explain, by the evidence of their traces
needed_fixes    the fixes without which a failure does not show
verification    does a patch fix a finding
"""
