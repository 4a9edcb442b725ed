"""One file a report format. Those of people and pictures (`html`, `markdown`, `terminal`, `png`) render any
document, too; `json` is the report itself, `junit` its gates.
"""
