"""The evidence of a failure, and whether two failures have one cause.

evidence     what is known about the cause of a failure: plain data (`Evidence`)
facts        facts about the steps up to a violation
origins      facts about where a wrong value came from
spectrum     the place in the engine's code where failing and passing runs part
investigate  collects the evidence of one failing trace (`Investigation.evidence`)
same_cause   decides whether failures have one cause (`likeness`, `can_start_finding`)
weights      fitted numbers of `same_cause`
"""
