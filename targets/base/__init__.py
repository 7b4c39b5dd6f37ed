"""What all targets share.

A trace, and what a target reports of it:

    trace             traces: a configuration and a list of events
    alphabet          what an event's type says about the event
    observe           records and views that a target reports
    numbers           numbers that a numeric target reports beside its tags
    protocol          the `Target` protocol, and `Capabilities`
    stock             what an engine runs where nobody has set anything but the model
    declarations      checks what a target declares there
    proxy             proxies of a target, for code that records or changes a run
    inspection        the whole state of a target, for an exploration
    shadow            arithmetic on tags, for shadow layers
    decoys            where a model prefers a token that its request rules out
    grammars          grammars and their compiler, in place of a backend of structured output
    external          content outside of the pool, as a KV connector's store has it
    kits              the form of the tables of what a kit cannot do
    skeleton          the text of a new target, for `new-target`

From a target string to a process:

    registry          target strings: which engine, which version, how to start it
    releases          finds an engine: a release, a checkout, or the one installed here
    checkout          a view of a checkout from which an engine imports as from a release
    environment       environments for engines, made once and kept
    stored_environments  what lies in the cache folder, and how it is removed
    pip               runs pip, and explains a failure in one line
    launch            interpreter and environment of a worker
    renamed           finds what an engine has renamed or moved, by structure
    tested            what the newest tested release has, to notice a version that seems to have less
    patches           unified diffs, read as data and applied as text
    patch_names       names of an engine that a patch's added lines need
    patched_copy      a copy of an engine's tree with patches applied
    git               runs git on a user's checkout
    regular_file      reads a file that somebody else may have put there
    coverage_scope    the modules of an engine that hold its caches
    coverage_tool     coverage.py for workers
    translated_lines  lines of an engine that an adapter runs in a translation of its own

From a finding to a report:

    deployment        the server that a configuration stands for
    engine_words      our sentences in the words of an engine's developers
    issue_form        the bug form of its tracker, and what of a report stands under each heading
    client_requests   what its clients send
    front_door        compares what ran with what the engine's parser makes of that server's command
    confirmation      what a real model shows of a failing trace
    repro             stand-alone reproducers
    client_turn       what a client of a script receives, and what it should receive
    client_script     the text of scripts that show what clients ask for and receive
    engine_tests      the same scripts as tests for an engine's own tree
    inlined           copies definitions of ours into scripts
"""
