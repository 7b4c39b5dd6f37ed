"""Renders a campaign, a finding or a detection matrix as one self-contained page.

    markup    elements of HTML and SVG; everything that is not markup already is escaped
    data      reads the data of a page from a folder
    timeline  block lives as SVG
    charts    rates over time as SVG
    findings, sections, page    the parts of the page, and the page

Nothing here prints. A page has no scripts and no external resources.
"""
