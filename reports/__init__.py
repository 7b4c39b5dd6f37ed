"""Renders a campaign, a finding or a detection matrix as one self-contained page.

    handler   the page as an output of a campaign
    data      reads the data of a page from a folder
    page      the page
    sections  its parts
    findings  the part with the findings: message, proof, block lives, commands to copy
    charts    rates over time as SVG

Nothing here prints. A page has no scripts and no external resources.
"""
