"""A failure in words and files for somebody else: explanation, picture, report, script.

explain              the sentences
clauses              one clause for each mark of a block
timeline             the table of blocks and steps
timeline_svg         the same table as a picture
terminal             both for a terminal or a text file
scenario             the requests and events of a trace in words
headline             what a user sees of a failure: title and first paragraph
reproduce            from a failing trace to the content of its report, and to a script that fails as promised
controls             runs that differ in one factor and pass
at_scale             a trace in the lengths of a server, and the limits that its server must have
client_block         the clients of that server, as a script
bug_report           REPORT.md
repro_folder         the folder around script, report and picture
unit_test            a test of the part of an engine that is wrong
script               runs a reproducer script before it is handed out
versions             the versions in a target's environment
configuration        the configuration of a trace in one line
silence              what the silence of a campaign is worth
github_step_summary  sections on the page of a GitHub workflow's run
changed_words        which changed lines of the engine ran
usual_options        sets options that a failure does not need to their usual values
related              public reports from the known bugs that come with hybridfuzz
on_device            runs a failing trace on real models, for `hybridfuzz confirm`
bisect               finds the releases that show a failure
commits              the commits of a checkout as versions to bisect
"""
