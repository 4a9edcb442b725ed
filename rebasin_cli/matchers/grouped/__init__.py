"""The engine of wm and am for words with groups: elements that are multiplied into the second model.

Words that are only ordered go to the engine of weight matching as it is; for others the model's own tensors
are changed, and what was done to them is kept beside.
"""
