"""The commands of the command line.

fuzz             random traces against a target
coverage         the lines of an engine that traces reach
coverage_report  `--coverage`: what is recorded, and the report at the end
against          `--against`: two targets on the same traces
explore          all traces up to a length, with a certificate
replay           traces from files
reduce           cuts a failing trace down
bisect           the releases that show a failure
known            known bugs: added, listed, checked
verify_fix       whether a patch fixes a finding
repro            a folder that makes a failure run elsewhere
confirm          a failure on real models, with and without a fix
merge            several campaigns as one
report           a page of HTML
mutants          how fast known bugs are found
targets          lists the targets
new_target       writes the skeleton of a target
doctor           checks this machine and installation
cache            what lies in the cache folder: listed, cleaned
completion       what makes a shell complete the command line
where            `--cluster`, `-o URL`: where workers run, and where output goes
common           options and output that commands share
signals          ends a command's work cleanly on Ctrl-C
reading          reads many trace files, broken ones among them

Each command has `EXAMPLES`, `add_arguments(parser)` and `run(options)`.
"""
