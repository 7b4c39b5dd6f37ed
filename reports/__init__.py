"""Turns result records into something to read: one self-contained page for a campaign, a finding or a matrix.

    markup    elements of HTML and SVG; everything that is not markup already is escaped
    data      what a folder has to show
    timeline  block lives as SVG
    charts    rates over time as SVG
    findings, sections, page    the parts of the page, and the page

Nothing here prints, and a page needs neither scripts nor anything from elsewhere.
"""
