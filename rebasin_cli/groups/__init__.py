"""The groups that a word of a spec can have: what each is, in numbers alone.

`kinds/` has one file each, whose name is what a spec writes; other packages add theirs under the entry point
group `rebasin_cli.groups`. The rest of the program asks `group.find(name)`, and knows none by name.

An axis of a word `h` is multiplied by the element, one of `h~` by its inverse's transpose, and one of `|h|`
only takes the element's order: a gain stays positive where signs change. Of rotations the first two are one.
"""
